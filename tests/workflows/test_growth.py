"""A run on its dataset after the vocabularies grew."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from stampede import CheckpointError, ConfigError
from stampede.pipeline import Dataset, PrepareOptions, Schema, SplitRule, append_split, prepare
from stampede.pipeline.grow import GrowOptions
from stampede.training.build import model_of, optimizer_of
from stampede.training.config import TrainConfig
from stampede.training.evaluation import EVALUATION_BATCH
from stampede.training.loader import open_loader
from stampede.training.metrics import auc, log_loss
from stampede.training.resident import DeviceLoader
from stampede.training.step import TrainStep
from stampede.workflows.compare import run_compare
from stampede.workflows.evaluate import run_evaluate
from stampede.workflows.growth import check_init_from, ids_of_run, init_from
from stampede.workflows.importance import run_importance
from stampede.workflows.predict import run_predict
from stampede.workflows.report import run_report
from stampede.workflows.run import Run
from stampede.workflows.train import run_train

CRITEO = Schema.preset("criteo")
OPTIONS = PrepareOptions(split=SplitRule(valid_fraction=0.1, test_fraction=0.1), min_count=2)
VALUES = {"hidden": (16,), "epochs": 1, "batch_size": 256, "threads": 1}


class Days:
    """A dataset of a first day, a run on it, and a second day that the vocabularies grew by."""

    def __init__(self, folder: Path, log: Path, *, buckets: int = 0) -> None:
        rows = log.read_text().splitlines(keepends=True)
        self.first, self.second = folder / "day_1.tsv", folder / "day_2.tsv"
        self.first.write_text("".join(rows[:900]))
        self.second.write_text("".join(rows[900:]))
        options = PrepareOptions(split=OPTIONS.split, min_count=2, hash_buckets=buckets)
        self.data, self.run = folder / "data", folder / "run"
        self.before = prepare(CRITEO, [self.first], self.data, options=options)
        run_train(self.data, out=self.run, recipe="small", given=VALUES, force=False, say=lambda line: None)
        self.test = run_evaluate(self.run, data=None, split="test")
        self.grown = append_split(CRITEO, [self.second], self.data, "day_2", grow=GrowOptions(min_count=1))


@pytest.fixture(scope="module", params=[0, 10], ids=["unseen", "buckets"])
def days(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, small_log: Path) -> Days:
    return Days(tmp_path_factory.mktemp("days"), small_log, buckets=request.param)


def test_a_run_from_before_evaluates_as_it_predicts(days: Days, tmp_path: Path) -> None:
    metrics = run_evaluate(days.run, data=None, split="day_2")

    out = tmp_path / "scores.parquet"
    run_predict(days.run, [str(days.second)], out=out, force=False)
    scores = pl.read_parquet(out)["score"].to_numpy()
    labels = days.grown.scan("day_2").collect()["label"].to_numpy()
    assert metrics.rows == 600
    assert metrics.auc == pytest.approx(auc(labels, scores), abs=1e-9)
    assert metrics.logloss == pytest.approx(log_loss(labels, scores), abs=1e-6)
    assert run_evaluate(days.run, data=days.data, split="day_2") == metrics


def test_the_old_splits_evaluate_as_before(days: Days) -> None:
    assert run_evaluate(days.run, data=None, split="test") == days.test


def test_ids_of_the_run_are_those_that_it_would_have_given(days: Days, tmp_path: Path) -> None:
    ids = ids_of_run(Run.open(days.run), days.grown)
    assert ids is not None
    plain = append_split(CRITEO, [days.second], copy_of_first(days, tmp_path), "day_2")

    loaded = DeviceLoader(days.grown, "day_2", batch_size=EVALUATION_BATCH, ids=ids)
    theirs = DeviceLoader(plain, "day_2", batch_size=EVALUATION_BATCH)

    assert torch.equal(loaded.data.ids, theirs.data.ids)
    unmapped = DeviceLoader(days.grown, "day_2", batch_size=EVALUATION_BATCH)
    assert not torch.equal(unmapped.data.ids, theirs.data.ids)


def copy_of_first(days: Days, folder: Path) -> Path:
    """Prepare the first day again."""
    options = PrepareOptions(split=OPTIONS.split, min_count=2, hash_buckets=days.before.manifest.hash_buckets)
    prepare(CRITEO, [days.first], folder / "again", options=options)
    return folder / "again"


def test_a_stream_gives_the_same_ids(days: Days) -> None:
    ids = ids_of_run(Run.open(days.run), days.grown)
    held, streamed = (
        open_loader(days.grown, "day_2", batch_size=EVALUATION_BATCH, kind=kind, memory=1 << 30, ids=ids)
        for kind in ("device", "stream")
    )
    for one, other in zip(held, streamed, strict=True):
        assert torch.equal(one.ids, other.ids)


def test_a_report_scores_the_new_day_as_evaluation_does(days: Days, tmp_path: Path) -> None:
    metrics = run_evaluate(days.run, data=None, split="day_2")
    for data in (None, days.data):
        page = tmp_path / f"{data is None}.html"
        reported = run_report(
            days.run, split="day_2", data_path=data, out=page, force=False, say=lambda line: None
        )
        assert (reported.auc, reported.logloss) == (metrics.auc, metrics.logloss)


def test_runs_of_before_and_after_are_compared_on_the_new_day(days: Days, tmp_path: Path) -> None:
    after = tmp_path / "after"
    run_train(
        days.data,
        out=after,
        recipe=None,
        given={"train_split": "day_2", "valid_split": "none", "threads": 1},
        force=False,
        say=lambda line: None,
        init_from=days.run,
    )
    expected = [run_evaluate(run, data=None, split="day_2") for run in (days.run, after)]
    for data in (None, days.data):
        compared = run_compare([days.run, after], data=data, split="day_2", resamples=2, seed=0)
        assert [run.auc.value for run in compared.runs] == pytest.approx([m.auc for m in expected], abs=1e-9)


def test_importance_is_of_the_scores_that_the_run_gives(days: Days) -> None:
    expected = run_evaluate(days.run, data=None, split="day_2")
    found = run_importance(days.run, data=None, split="day_2", repeats=1, seed=0)
    assert found.auc == pytest.approx(expected.auc, abs=1e-9)


def test_a_run_that_began_before_does_not_resume(days: Days) -> None:
    with pytest.raises(CheckpointError, match=r"grew since .* began: make a new run, with --init-from"):
        run_train(
            days.data, out=days.run, recipe=None, given={}, force=False, say=lambda line: None, resume=True
        )


def test_training_goes_on_from_the_run(days: Days) -> None:
    run, sizes = Run.open(days.run), days.grown.sizes
    config = TrainConfig(**{**run.config.model_dump(), "seed": 5})
    model = model_of(config, sizes, n_dense=13)
    optimizer = optimizer_of(config, model)

    init_from(run, days.grown, model, optimizer)

    mapped = ids_of_run(run, days.grown)
    rows = next(iter(DeviceLoader(days.before, "test", batch_size=EVALUATION_BATCH)))
    old = run.load_model(torch.device("cpu"))
    if not config.ema_decay:
        with torch.no_grad():
            assert torch.equal(model(rows.dense, rows.ids), old(rows.dense, rows.ids))
    loader = DeviceLoader(days.grown, "day_2", batch_size=256)
    step = TrainStep(model, optimizer, batch_size=256)
    before = model.embedding.weight.detach().clone()
    for batch in loader:
        loss = step(batch)
        assert bool(torch.isfinite(loss))
    assert mapped is not None
    new_rows = np.concatenate([table != np.arange(len(table)) for table in mapped])
    moved = (model.embedding.weight != before).any(1)
    assert bool(moved[torch.from_numpy(new_rows)].all())


def test_another_dataset_is_refused(days: Days, tmp_path: Path) -> None:
    run = Run.open(days.run)
    other = prepare(CRITEO, [days.second], tmp_path / "other", options=OPTIONS)
    with pytest.raises(CheckpointError, match="has another vocabulary of C1 than"):
        check_init_from(run, other)
    with pytest.raises(CheckpointError, match="has another vocabulary"):
        run_evaluate(days.run, data=other.path, split="test")
    crossed = PrepareOptions(split=OPTIONS.split, crosses=(("C1", "C2"),))
    with pytest.raises(CheckpointError, match="has other fields"):
        check_init_from(run, prepare(CRITEO, [days.first], tmp_path / "crossed", options=crossed))


def test_other_statistics_are_refused(days: Days, tmp_path: Path) -> None:
    again = copy_of_first(days, tmp_path)
    manifest = again / "manifest.json"
    check_init_from(Run.open(days.run), Dataset.open(again))
    manifest.write_text(manifest.read_text().replace('"maximum": ', '"maximum": 1', 1))
    with pytest.raises(CheckpointError, match="encodes rows in another way"):
        check_init_from(Run.open(days.run), Dataset.open(again))


def test_a_run_that_saw_more_is_refused_on_an_older_dataset(days: Days, tmp_path: Path) -> None:
    given = {**VALUES, "max_steps": 1}
    run_train(
        days.data, out=tmp_path / "run", recipe="small", given=given, force=False, say=lambda line: None
    )
    older = Dataset.open(copy_of_first(days, tmp_path))
    assert ids_of_run(Run.open(tmp_path / "run"), older) is None
    with pytest.raises(CheckpointError, match="has another vocabulary"):
        check_init_from(Run.open(tmp_path / "run"), older)


def test_growing_by_fewer_than_one_row_a_value_is_no_option() -> None:
    with pytest.raises(ConfigError):
        GrowOptions(min_count=-1)
