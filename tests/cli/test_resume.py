"""``train --resume``: what goes on, what is refused, and what a signal leaves."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.conftest import Command

from stampede.workflows.files import hold_folder

TINY = (
    *("--recipe", "small", "--hidden", "8", "--threads", "1", "--patience", "0"),
    *("--epochs", "2", "--batch-size", "100"),
)


@pytest.fixture
def run(stampede: Command, small_dataset: Path, tmp_path: Path) -> Path:
    run = tmp_path / "run"
    assert stampede("train", small_dataset, "--out", run, *TINY).code == 0
    return run


def lines_of(run: Path) -> list[str]:
    return (run / "metrics.jsonl").read_text().splitlines()


def test_more_epochs(stampede: Command, small_dataset: Path, run: Path, tmp_path: Path) -> None:
    stampede("train", small_dataset, "--out", tmp_path / "longer", *TINY, "--epochs", "3")

    answer = stampede("train", small_dataset, "--out", run, "--resume", "--epochs", "3", "--json")

    assert answer.code == 0
    assert answer.json["steps"] == 39
    assert "going on from step 26, in epoch 3" in answer.err
    assert lines_of(run) == lines_of(tmp_path / "longer")
    assert "epochs = 3" in (run / "config.toml").read_text()


def test_the_same_command_with_resume_is_a_retry(
    stampede: Command, small_dataset: Path, run: Path, tmp_path: Path
) -> None:
    before = lines_of(run)

    again = stampede("train", small_dataset, "--out", run, *TINY, "--resume")
    new = stampede("train", small_dataset, "--out", tmp_path / "new", *TINY, "--resume")

    assert (again.code, new.code) == (0, 0)
    assert lines_of(run) == lines_of(tmp_path / "new") == before


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--l2", "0.5"], "was begun with --l2 0.000"),
        (
            ["--model", "fm"],
            "was begun with --model deepfm, not fm: --resume lets only --epochs, --max-steps",
        ),
        (["--recipe", "criteo"], "was begun with"),
        (["--force"], "--resume goes on with a run, --force replaces it"),
        (["--checkpoint-every", "soon"], "--checkpoint-every soon: it must be a number of steps"),
        (["--epochs", "0"], "--epochs 0"),
        (["--epochs", "1"], "--epochs 1: "),
        (["--max-steps", "5"], "has done 26 already"),
    ],
)
def test_other_values_are_refused(
    stampede: Command, small_dataset: Path, run: Path, flags: list[str], said: str
) -> None:
    answer = stampede("train", small_dataset, "--out", run, "--resume", *flags)

    assert answer.code == 2
    assert said in answer.err


def test_a_config_that_was_edited_is_refused(stampede: Command, small_dataset: Path, run: Path) -> None:
    file = run / "config.toml"
    file.write_text(file.read_text().replace("seed = 0", "seed = 1"))

    answer = stampede("train", small_dataset, "--out", run, "--resume")

    assert answer.code == 2
    assert "config.toml was changed: seed is 1 there, and the run was begun with 0" in answer.err


def test_another_dataset_is_refused(stampede: Command, small_log: Path, run: Path, tmp_path: Path) -> None:
    stampede("prepare", "criteo", small_log, "--out", tmp_path / "other", "--min-count", "9")

    answer = stampede("train", tmp_path / "other", "--out", run, "--resume")

    assert answer.code == 1
    assert "is not the dataset of" in answer.err


@pytest.mark.parametrize("flag", ["--resume", "--force"])
def test_a_run_that_another_process_trains_is_left_alone(
    stampede: Command, small_dataset: Path, run: Path, flag: str
) -> None:
    before = lines_of(run)

    with hold_folder(run):
        answer = stampede("train", small_dataset, "--out", run, *TINY, flag)

    assert answer.code == 1
    assert f"another process works on {run}: wait for it, or stop it" in answer.err
    assert lines_of(run) == before


def test_what_is_no_run_is_refused(stampede: Command, small_dataset: Path, tmp_path: Path) -> None:
    answer = stampede("train", small_dataset, "--out", tmp_path, "--resume")

    assert answer.code == 1
    assert "has no config.toml" in answer.err


def test_a_run_without_a_checkpoint_begins_anew(stampede: Command, small_dataset: Path, run: Path) -> None:
    before = lines_of(run)
    shutil.rmtree(run / "checkpoints")
    (run / "best").unlink()

    without = stampede("train", small_dataset, "--out", run, *TINY)
    answer = stampede("train", small_dataset, "--out", run, "--resume")

    assert "is an unfinished run: go on with it by --resume" in without.err
    assert answer.code == 0
    assert "has no checkpoint yet: it begins anew" in answer.err
    assert lines_of(run) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_the_state_and_says_how_to_go_on(
    stampede: Command, small_dataset: Path, tmp_path: Path, number: signal.Signals
) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    flags = [*TINY, "--batch-size", "20", "--epochs", "400"]
    command = [sys.executable, "-m", "stampede", "train", str(small_dataset), "--out", str(run), *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    while not (run / "metrics.jsonl").exists() or len(lines_of(run)) < 3:
        assert process.poll() is None
        time.sleep(0.05)
    os.kill(process.pid, number)
    out, err = process.communicate(timeout=60)

    assert process.returncode == 130
    assert "stopping once the state is saved" in err
    last = err.strip().splitlines()[-1]
    assert last.startswith("stampede: stopped at step ")
    assert last.endswith(
        f"its state is saved; go on with: stampede train {small_dataset} --out {run} --resume"
    )
    assert out == ""
    step = int(last.split(" of epoch")[0].rsplit(" ", 1)[1].replace(",", ""))
    steps = str(step + 70)
    assert stampede("train", small_dataset, "--out", run, "--resume", "--max-steps", steps).code == 0
    stampede("train", small_dataset, "--out", whole, *flags, "--max-steps", steps)
    assert lines_of(run) == lines_of(whole)
