"""``stampede sweep``: real runs in processes of their own."""

from __future__ import annotations

import csv
import inspect
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stampede.cli.held_fixed import COMMON, OF_ONE_RUN
from stampede.cli.train import train
from stampede.training.config import TrainConfig

if TYPE_CHECKING:
    from tests.conftest import Answer, Command

TINY = (
    "--recipe",
    "small",
    "--hidden",
    "16",
    "--epochs",
    "1",
    "--seeds",
    "1",
    "--threads",
    "1",
    "--device",
    "cpu",
)


@pytest.fixture(scope="module")
def wild(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe with which a large batch diverges under the rule ``linear`` and not under ``none``."""
    file = tmp_path_factory.mktemp("recipe") / "wild.toml"
    file.write_text(
        "[train]\nlearning_rate = 1e3\nembedding_learning_rate = 1e18\nwarmup_epochs = 0.0\nbatch_size = 1\n"
    )
    return file


def test_every_option_of_train_is_held_fixed_or_is_the_studys_own() -> None:
    options = set(inspect.signature(train).parameters) - OF_ONE_RUN - COMMON

    assert options <= set(TrainConfig.model_fields)


def test_a_study_that_grows_has_a_failure_and_goes_on(
    stampede: Command, small_dataset: Path, tmp_path: Path
) -> None:
    study = tmp_path / "study"
    asked = ("sweep", small_dataset, "--out", study, "--rules", "none,linear", *TINY, "--resume", "--json")
    first = stampede(*asked, "--batch-sizes", "1024")
    blocked = study / "runs" / "deepfm-linear-none-b512-s0"
    blocked.mkdir(parents=True)
    (blocked / "thesis.txt").write_text("this is no run, so it is not replaced")
    failed = stampede(*asked, "--batch-sizes", "512,1024", "--jobs", "2")
    (blocked / "thesis.txt").unlink()
    mended = stampede(*asked, "--batch-sizes", "512,1024")

    assert (first.code, failed.code, mended.code) == (0, 1, 0), first.err + failed.err + mended.err
    assert "1 runs to train" in first.err  # the rules coincide at the base batch
    assert {row["rule"]: row["finished"] for row in first.json["table"]} == {"none": 1, "linear": 1}

    (reason,) = [point["reason"] for point in failed.json["points"] if point["status"] == "failed"]
    assert "is not a run" in reason
    assert "1 runs failed" in failed.err

    assert "1 runs to train" in mended.err
    rows = {(row["rule"], row["batch_size"]): row for row in mended.json["table"]}
    assert rows["none", 1024]["auc"] == rows["linear", 1024]["auc"] == first.json["table"][0]["auc"]
    assert rows["none", 512]["to_base"]["auc"]["n"] == 1
    assert rows["linear", 512]["learning_rate"] == pytest.approx(4e-4)
    with (study / "points.csv").open() as file:
        assert [row["status"] for row in csv.DictReader(file)] == ["finished"] * 4
    evaluated = stampede("evaluate", study / "runs" / "deepfm-none-none-b1024-s0", "--json").json
    assert evaluated["auc"] == rows["none", 1024]["test_auc"]["mean"]


def test_a_point_that_diverges_is_a_result(
    stampede: Command, small_dataset: Path, tmp_path: Path, wild: Path
) -> None:
    answer = sweep(
        stampede,
        small_dataset,
        tmp_path / "s",
        "--recipe",
        wild,
        "--batch-sizes",
        "1024",
        "--rules",
        "linear",
    )

    (point,) = answer.json["points"]
    assert answer.code == 0
    assert point["status"] == "diverged"
    assert "not finite" in point["reason"]
    assert "diverged" in answer.err


def test_ctrl_c_stops_the_workers_and_says_how_to_go_on(small_dataset: Path, tmp_path: Path) -> None:
    study = tmp_path / "study"
    command = [
        sys.executable, "-m", "stampede", "sweep", str(small_dataset), "--out", str(study),
        "--batch-sizes", "16", *TINY, "--epochs", "100000", "--patience", "0",
    ]  # fmt: skip
    job = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while job.poll() is None and not list(study.glob("runs/*/metrics.jsonl")):
        time.sleep(0.05)

    os.kill(job.pid, signal.SIGINT)
    _, err = job.communicate(timeout=60)

    assert job.returncode == 130
    assert "the same command with --resume goes on" in err
    assert not workers_on(study)
    assert (study / "points.csv").is_file()
    assert json.dumps([path.name for path in (study / "outcomes").iterdir()]) == "[]"


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        (("--batch-sizes", "0"), "--batch-sizes 0"),
        (("--batch-sizes", "64", "--rules", "square"), "'square' is none of"),
        (("--batch-sizes", "64", "--devices", "0"), "--devices names GPUs"),
        (("--batch-sizes", "64", "--cross-layers", "2"), "--cross-layers is of"),
        (("--batch-sizes", "64", "--optimizer", "helen"), "helen clips nothing"),
        (("--batch-sizes", "64", "--hidden", "a"), "--hidden a"),
    ],
)
def test_usage_errors_train_nothing(
    stampede: Command, small_dataset: Path, tmp_path: Path, flags: tuple[str, ...], fault: str
) -> None:
    answer = stampede("sweep", small_dataset, "--out", tmp_path / "s", *TINY, *flags)

    assert answer.code == 2
    assert fault in answer.err
    assert not (tmp_path / "s").exists()


def sweep(stampede: Command, dataset: Path, out: Path, *flags: Any) -> Answer:
    return stampede("sweep", dataset, "--out", out, *TINY, *flags, "--json")


def workers_on(study: Path) -> list[str]:
    """Return the command lines of processes that have a file of the study open."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            open_files = [str(file.readlink()) for file in (process / "fd").iterdir()]
            if any(file.startswith(str(study)) for file in open_files):
                found.append((process / "cmdline").read_text())
        except OSError:
            continue
    return found
