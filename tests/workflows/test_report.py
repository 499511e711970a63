"""The report of a run: what it says, and what it says where something is missing."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.workflows.run_records import write_lines

from stampede import CheckpointError, DatasetError, StampedeError
from stampede.training.config import TrainConfig
from stampede.workflows.recipe import Recipe, configure
from stampede.workflows.report import Reported, run_report
from stampede.workflows.reporting.clipping import over_steps
from stampede.workflows.reporting.curves import POINTS, smoothed, thinned
from stampede.workflows.reporting.history import TablesRecord
from stampede.workflows.reporting.settings import nearest_recipe

SECTIONS = [
    "Training",
    "CowClip",
    "Gradients and weights",
    "Scores on the test split",
    "Configuration",
    "Dataset",
]


def report(run: Path, **options: Any) -> tuple[Reported, str, list[str]]:
    """Write a report and return what came of it, the page, and what was said."""
    said: list[str] = []
    reported = run_report(run, **{"out": None, "force": False, "say": said.append, **options})
    return reported, reported.out.read_text("utf-8"), said


def titles(page: str, level: int) -> list[str]:
    return re.findall(rf"<h{level}[^>]*>(.*?)</h{level}>", page)


def notes(page: str) -> str:
    return "\n".join(re.findall(r'<p class="note wide">(.*?)</p>', page))


def tile(page: str, label: str) -> str:
    found = re.search(rf"<dt>{label}</dt>\s*<dd>(.*?)</dd>", page)
    assert found is not None
    return found.group(1)


def rewrite(run: Path, keep: Any) -> None:
    """Keep only some lines of the run's metrics."""
    file = run / "metrics.jsonl"
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    write_lines(file, [line for line in lines if keep(line)])


def test_a_whole_run_has_every_section_and_chart(run: Path) -> None:
    reported, page, said = report(run)

    assert reported.out == run / "report.html"
    assert titles(page, 2) == SECTIONS
    charts = titles(page, 3)
    assert {"Training cross-entropy", "Valid AUC by epoch", "Learning rates", "Speed"} <= set(charts)
    assert {"Clip factor by id frequency", "Share of ids clipped by id frequency"} <= set(charts)
    assert {"Gradient norm by field", "Weight norm by field", "Norm of the dense weights"} <= set(charts)
    assert {"Calibration", "Scores by class", "By the rarest value of the row"} <= set(charts)
    assert (notes(page), said) == ("", [])
    assert len(page) < 8_000_000


def test_its_metrics_are_those_that_the_run_ended_with(run: Path) -> None:
    result = json.loads((run / "metrics.jsonl").read_text("utf-8").splitlines()[-1])

    reported, page, _ = report(run)

    assert reported.split == "test"
    assert reported.auc == pytest.approx(result["test"]["auc"], abs=1e-12)
    assert reported.logloss == pytest.approx(result["test"]["logloss"], abs=1e-12)
    assert tile(page, "Test AUC") == f"{result['test']['auc']:.4f}"
    assert tile(page, "Valid log loss") == f"{result['valid']['logloss']:.4f}"
    assert tile(page, "Best epoch") == str(result["epoch"])
    assert tile(page, "State") == "finished"


def test_every_field_can_be_chosen(run: Path) -> None:
    _, page, _ = report(run)

    options = re.findall(r'<option value="\d+">(.*?)</option>', page)
    assert options == [f"C{number}" for number in range(1, 27)]


def test_the_valid_split_is_scored_where_it_is_asked_for(run: Path) -> None:
    result = json.loads((run / "metrics.jsonl").read_text("utf-8").splitlines()[-1])

    reported, page, _ = report(run, split="valid")

    assert reported.split == "valid"
    assert reported.auc == pytest.approx(result["valid"]["auc"], abs=1e-12)
    assert "Scores on the valid split" in titles(page, 2)


class TestWhereSomethingIsMissing:
    def test_a_dataset_that_is_gone_is_said_in_a_line(self, run: Path) -> None:
        encoder = json.loads((run / "encoder.json").read_text("utf-8"))
        encoder["dataset"]["path"] = str(run / "gone")
        (run / "encoder.json").write_text(json.dumps(encoder), "utf-8")

        reported, page, said = report(run)

        assert (reported.split, reported.auc, reported.logloss) == (None, None, None)
        assert len(said) == 1
        assert "--data" in said[0]
        assert "no longer at" in notes(page)
        assert "Calibration" not in titles(page, 3)
        assert "Clip factor by id frequency" in titles(page, 3)
        assert "Fields" in titles(page, 3)

    def test_a_dataset_that_changed_is_not_scored(self, run: Path) -> None:
        encoder = json.loads((run / "encoder.json").read_text("utf-8"))
        encoder["dataset"]["fingerprint"] = "0" * 64
        (run / "encoder.json").write_text(json.dumps(encoder), "utf-8")

        reported, page, _ = report(run)

        assert reported.split is None
        assert "its manifest changed" in notes(page)

    def test_a_moved_dataset_is_named_with_data(self, run: Path, small_dataset: Path, tmp_path: Path) -> None:
        moved = shutil.copytree(small_dataset, tmp_path / "moved")
        encoder = json.loads((run / "encoder.json").read_text("utf-8"))
        encoder["dataset"]["path"] = str(tmp_path / "gone")
        (run / "encoder.json").write_text(json.dumps(encoder), "utf-8")

        reported, _, said = report(run, data_path=Path(moved))

        assert (reported.split, said) == ("test", [])

    @pytest.mark.parametrize(
        ("options", "error", "words"),
        [
            ({"data_path": Path("nowhere")}, DatasetError, "nowhere does not exist"),
            ({"split": "later"}, DatasetError, "has no later split"),
        ],
    )
    def test_what_was_asked_for_and_is_not_there_is_an_error(
        self, run: Path, options: dict[str, Any], error: type[StampedeError], words: str
    ) -> None:
        with pytest.raises(error, match=words):
            report(run, **options)

        assert not (run / "report.html").exists()

    def test_a_run_without_a_finished_epoch_shows_what_there_is(self, run: Path) -> None:
        (run / "best").unlink()
        shutil.rmtree(run / "checkpoints")
        rewrite(run, lambda line: line["kind"] in ("step", "tables") and line["epoch"] == 1)

        reported, page, said = report(run)

        assert reported.split is None
        assert "no finished epoch" in said[0]
        assert tile(page, "State") == "unfinished"
        assert "No epoch has ended yet" in notes(page)
        assert "Training cross-entropy" in titles(page, 3)

    def test_a_run_that_wrote_nothing_yet(self, run: Path) -> None:
        (run / "best").unlink()
        (run / "metrics.jsonl").unlink()
        (run / "timings.jsonl").unlink()

        _, page, _ = report(run)

        assert tile(page, "State") == "not begun"
        assert tile(page, "Speed") == "–"
        assert "no timings.jsonl" in notes(page)
        assert "no records of norms" in notes(page)

    def test_a_run_of_an_older_version(self, run: Path) -> None:
        (run / "timings.jsonl").unlink()
        rewrite(run, lambda line: line["kind"] != "tables")

        _, page, _ = report(run)

        assert "no records of clipping by frequency" in notes(page)
        assert "Share of rows clipped by step" in titles(page, 3)
        assert "Speed" not in titles(page, 3)

    def test_a_line_cut_off_is_noted(self, run: Path) -> None:
        with (run / "metrics.jsonl").open("a") as file:
            file.write('{"kind": "st')

        _, page, _ = report(run)

        assert "is cut off and was left out" in notes(page)

    def test_batches_that_were_left_out_are_counted(self, run: Path) -> None:
        with (run / "metrics.jsonl").open("a") as file:
            file.write('{"kind": "skip", "step": 7, "epoch": 1, "reason": "a loss that is not finite"}\n')

        _, page, _ = report(run)

        assert "1 batch was left out, at step 7: a loss that is not finite." in notes(page)

    def test_a_run_that_clips_nothing_says_so(self, run: Path) -> None:
        config = (run / "config.toml").read_text("utf-8")
        config = config.replace('optimizer = "cowclip"', 'optimizer = "adam"').replace(
            'clip = "cowclip"', 'clip = "none"'
        )
        (run / "config.toml").write_text(config, "utf-8")

        _, page, _ = report(run)

        assert "clips nothing" in notes(page)
        assert "Clip factor by id frequency" not in titles(page, 3)


class TestOut:
    def test_the_report_in_the_run_is_replaced_freely(self, run: Path) -> None:
        (run / "report.html").write_text("old")

        _, page, _ = report(run)

        assert page.startswith("<!doctype html>")
        assert not [file for file in run.iterdir() if file.name.startswith(".report")]

    def test_another_file_needs_force(self, run: Path, tmp_path: Path) -> None:
        out = tmp_path / "page.html"
        out.write_text("a thesis")

        with pytest.raises(StampedeError, match="--force"):
            report(run, out=out)
        assert out.read_text() == "a thesis"

        report(run, out=out, force=True)
        assert "Run deepfm" in out.read_text("utf-8")

    def test_a_folder_is_no_place_for_it(self, run: Path, tmp_path: Path) -> None:
        with pytest.raises(StampedeError, match="is a folder"):
            report(run, out=tmp_path, force=True)

    def test_what_is_no_run(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="stampede train"):
            report(tmp_path)


class TestParts:
    def test_clip_factors_of_several_steps_count_by_their_rows(self) -> None:
        def tables(step: int, rows: int, clipped: int, factor: float | None) -> TablesRecord:
            part = {"from": 1, "to": 3, "rows": rows, "clipped": clipped, "mean_factor": factor}
            return TablesRecord.model_validate({"step": step, "epoch": 1, "fields": {}, "frequency": [part]})

        (both,) = over_steps([tables(1, 30, 30, 0.2), tables(2, 10, 0, 1.0), tables(3, 0, 0, None)])

        assert (both.label, both.rows, both.clipped) == ("1–3", 40, 30)
        assert both.factor == pytest.approx((30 * 0.2 + 10 * 1.0) / 40)

    def test_a_smoothed_line_keeps_a_level_and_passes_gaps(self) -> None:
        values = [0.5] * 40
        values[7] = float("nan")

        assert smoothed(values) == pytest.approx(np.full(40, 0.5))
        assert np.isnan(smoothed([float("nan"), 1.0])).tolist() == [True, False]
        assert smoothed([1.0, 0.0])[1] == pytest.approx(np.exp(-1) / (1 + np.exp(-1)))

    def test_a_long_line_keeps_its_ends(self) -> None:
        steps = list(range(10 * POINTS))

        x, y = thinned(steps, [2.0 * step for step in steps])

        assert len(x) == POINTS
        assert (x[0], x[-1]) == (0, steps[-1])
        assert (y == 2 * x).all()

    @pytest.mark.parametrize("name", ["criteo", "avazu", "small"])
    @pytest.mark.parametrize("batch_size", [1024, 131_072])
    def test_the_nearest_recipe_of_a_recipe_is_itself(self, name: str, batch_size: int) -> None:
        config, _ = configure(Recipe.named(name).train, {"batch_size": batch_size})

        nearest, values = nearest_recipe(config)

        assert nearest == name
        assert values == TrainConfig.model_dump(config, mode="json")
