"""One run of a study in this process: from its beginning, from a checkpoint, from a damaged one."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from stampede.workflows.sweep.measures import Measures
from stampede.workflows.sweep.worker import Job, run_job
from stampede.workflows.train import run_train

GIVEN = {"hidden": [16], "batch_size": 256, "epochs": 2, "device": "cpu", "threads": 1}


def job(dataset: Path, run: Path, **given: Any) -> Job:
    return Job(str(dataset), str(run), "small", GIVEN | given)


def test_a_run_that_was_stopped_goes_on_from_its_checkpoint(
    small_dataset: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole, broken = job(small_dataset, tmp_path / "whole"), job(small_dataset, tmp_path / "broken")
    given = {**GIVEN, "hidden": (16,), "epochs": 1}
    run_train(small_dataset, out=tmp_path / "broken", recipe="small", given=given, force=False, say=print)
    capfd.readouterr()

    outcomes = [run_job(one, io.StringIO()) for one in (whole, broken)]

    assert "going on from step" in capfd.readouterr().err
    assert [outcome["status"] for outcome in outcomes] == ["finished"] * 2
    one, other = (Measures.read(Path(each.run)) for each in (whole, broken))
    assert one.test == other.test
    assert one.test is not None
    assert [epoch.seconds is not None for epoch in other.epochs] == [True, True]


def test_a_run_that_is_damaged_begins_anew(
    small_dataset: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_text("nonsense")

    outcome = run_job(job(small_dataset, run), io.StringIO())

    assert outcome["status"] == "finished"
    assert "begun anew" in capfd.readouterr().err


def test_rows_are_told_as_they_are_trained(
    small_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stampede.workflows.sweep.worker.SECONDS_PER_EVENT", -1.0)
    events = io.StringIO()

    run_job(job(small_dataset, tmp_path / "run"), events)

    rows = [json.loads(line)["rows"] for line in events.getvalue().splitlines()]
    (epochs,) = {len(Measures.read(tmp_path / "run").epochs)}
    from stampede.pipeline.dataset import Dataset

    assert sum(rows) == epochs * Dataset.open(small_dataset).rows["train"]
