"""The figures of a study, against numbers worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from stampede.training.scaling import Rule
from stampede.workflows.sweep.grid import Point, Series
from stampede.workflows.sweep.measures import Measures
from stampede.workflows.sweep.study import Study
from stampede.workflows.sweep.table import Cell, StudyTable, Summary, document_of, row_of_point, tabulate

COWCLIP = Series("deepfm", Rule.COWCLIP, "cowclip")
LINEAR = Series("deepfm", Rule.LINEAR, "none")

Begin = Callable[..., Study]
Write = Callable[..., None]


def cell(table: StudyTable, series: Series, batch_size: int) -> Cell:
    (found,) = [one for one in table.of_series(series) if one.batch_size == batch_size]
    return found


def approx(mean: float, deviation: float, n: int) -> Summary:
    return Summary(pytest.approx(mean), pytest.approx(deviation), n)  # type: ignore[arg-type]


@pytest.fixture
def study(begin_study: Begin, write_run: Write) -> Study:
    """Two seeds: CowClip gains 0.01 and 0.03 at 8192; linear diverges once there, and once it is missing."""
    study = begin_study()
    for seed, base, large in ((0, 0.70, 0.71), (1, 0.72, 0.75)):
        write_run(study, Point(COWCLIP, 1024, seed), aucs=[0.6, base], test=base + 0.05, seconds=10)
        write_run(study, Point(COWCLIP, 8192, seed), aucs=[0.5, 0.6, large], test=large + 0.05, seconds=3)
        write_run(study, Point(LINEAR, 1024, seed), aucs=[0.6, 0.69], test=0.70)
    write_run(study, Point(LINEAR, 8192, 0), status="diverged", reason="the loss is not finite at step 3")
    return study


def test_summary_of_a_sample() -> None:
    assert Summary.of([1.0, None, 3.0]) == Summary(2.0, math.sqrt(2.0), 2)
    assert Summary.of([1.0, 3.0]) is not None
    assert Summary.of([1.0, 3.0]).error == pytest.approx(1.0)  # type: ignore[union-attr]
    assert Summary.of([4.0]) == Summary(4.0, None, 1)
    assert Summary.of([None]) is None


def test_metrics_are_of_the_test_split_and_the_best_epoch(study: Study) -> None:
    table = tabulate(study)

    large = cell(table, COWCLIP, 8192)
    assert table.split == "test"
    assert large.metrics["auc"] == approx(0.78, math.sqrt(2) * 0.02, 2)
    assert large.metrics["valid_auc"] == approx(0.73, math.sqrt(2) * 0.02, 2)
    assert large.metrics["logloss"] == approx(0.22, math.sqrt(2) * 0.02, 2)


def test_differences_to_the_base_batch_are_paired_by_seed(study: Study) -> None:
    table = tabulate(study)

    difference = cell(table, COWCLIP, 8192).to_base["auc"]
    assert difference == approx(0.02, math.sqrt(2) * 0.01, 2)
    assert difference is not None
    assert difference.error == pytest.approx(0.01)
    assert cell(table, COWCLIP, 1024).to_base["auc"] is None
    assert cell(table, LINEAR, 8192).to_base["auc"] is None


def test_a_seed_that_has_no_base_is_no_pair(begin_study: Begin, write_run: Write) -> None:
    study = begin_study()
    write_run(study, Point(COWCLIP, 1024, 0), aucs=[0.70], test=0.70)
    write_run(study, Point(COWCLIP, 8192, 0), aucs=[0.71], test=0.71)
    write_run(study, Point(COWCLIP, 8192, 1), aucs=[0.90], test=0.90)

    difference = cell(tabulate(study), COWCLIP, 8192).to_base["auc"]

    assert difference == Summary(pytest.approx(0.01), None, 1)  # type: ignore[arg-type]


def test_what_did_not_finish_is_counted_with_its_reason(study: Study) -> None:
    table = tabulate(study)

    lost = cell(table, LINEAR, 8192)
    assert (lost.count("diverged"), lost.count("missing"), lost.count("finished")) == (1, 1, 0)
    assert lost.metrics["auc"] is None
    rows = [row_of_point(point) for point in lost.points]
    assert [row["reason"] for row in rows] == ["the loss is not finite at step 3", None]


def test_time_to_target_is_measured_to_just_below_the_best_base(study: Study) -> None:
    table = tabulate(study)

    assert table.targets == {"deepfm": pytest.approx(0.71 - 0.001)}
    large, base = (cell(table, COWCLIP, size).time_to_target for size in (8192, 1024))
    assert large is not None
    assert (large.reached, large.epochs, large.seconds) == (2, 3.0, 9.0)
    assert base is not None
    assert (base.reached, base.epochs, base.seconds) == (1, 2.0, 20.0)
    never = cell(table, LINEAR, 1024).time_to_target
    assert never is not None
    assert (never.reached, never.epochs, never.seconds) == (0, None, None)


def test_seconds_are_those_of_training_over_the_whole_run(study: Study) -> None:
    assert cell(tabulate(study), COWCLIP, 8192).seconds == pytest.approx(9.0)


def test_time_to_a_target_of_the_users(study: Study) -> None:
    time = cell(tabulate(study, target_auc=0.6), COWCLIP, 8192).time_to_target

    assert time is not None
    assert (time.reached, time.epochs, time.seconds) == (2, 2.0, 6.0)


def test_clipped_shares(begin_study: Begin, write_run: Write) -> None:
    study = begin_study()
    bins: list[dict[str, Any]] = [
        {"from": 1, "to": 3, "rows": 90, "clipped": 9, "mean_factor": 0.9},
        {"from": 4, "to": None, "rows": 10, "clipped": 1, "mean_factor": 1.0},
    ]
    unclipped = {**bins[0], "clipped": 0, "mean_factor": 1.0}
    write_run(
        study,
        Point(COWCLIP, 8192, 0),
        aucs=[0.7],
        test=0.7,
        records=[
            {"kind": "step", "step": 5, "epoch": 1, "clipped_share": 0.02},
            {"kind": "step", "step": 10, "epoch": 1, "clipped_share": 0.04},
            {"kind": "tables", "step": 5, "epoch": 1, "frequency": bins},
            {"kind": "tables", "step": 10, "epoch": 1, "frequency": [unclipped]},
            {"kind": "tables", "step": 10, "epoch": 1, "frequency": None},
        ],
    )  # fmt: skip

    found = cell(tabulate(study), COWCLIP, 8192)

    assert found.clipped_share == pytest.approx(0.03)
    assert found.clipped_share_of_batch == pytest.approx(10 / 190)
    assert [(b.first, b.last, b.rows, b.clipped) for b in found.frequencies] == [
        (1, 3, 180, 9),
        (4, None, 10, 1),
    ]
    assert found.frequencies[0].mean_factor == pytest.approx(0.95)


def test_records_that_are_cut_off_are_read_as_far_as_they_go(study: Study) -> None:
    run = study.run_folder("deepfm-cowclip-cowclip-b1024-s0")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "epo')

    assert len(Measures.read(run).epochs) == 2


def test_without_a_test_split_the_figures_are_of_valid(begin_study: Begin, write_run: Write) -> None:
    study = begin_study()
    write_run(study, Point(COWCLIP, 1024, 0), aucs=[0.7], test=None)

    table = tabulate(study)

    assert table.split == "valid"
    assert cell(table, COWCLIP, 1024).metrics["auc"] == Summary(0.7, None, 1)


def test_the_document_is_json_with_null_for_what_is_undefined(study: Study) -> None:
    import json

    document = json.loads(json.dumps(document_of(tabulate(study)), allow_nan=False))

    rows = {(row["rule"], row["batch_size"]): row for row in document["table"]}
    assert rows["linear", 8192]["auc"] is None
    assert rows["linear", 8192]["diverged"] == 1
    assert rows["cowclip", 8192]["to_base"]["auc"]["n"] == 2
    assert rows["cowclip", 8192]["l2"] == pytest.approx(8e-5)
    assert rows["cowclip", 8192]["clipped_share"] is None
    assert len(document["points"]) == 8
