"""``train --init-from``: a day's rows on top of a run, with the ids that they bring."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.conftest import Command

TINY = ("--recipe", "small", "--hidden", "8", "--threads", "1", "--epochs", "1", "--batch-size", "100")
SPLITS = ("--train-split", "day_2", "--valid-split", "none")


@pytest.fixture
def grown(stampede: Command, small_log: Path, tmp_path: Path) -> Path:
    """DATA of 1,000 rows, grown by 500 of day_2, and RUN trained before that."""
    rows = small_log.read_text().splitlines(keepends=True)
    (tmp_path / "one.tsv").write_text("".join(rows[:1000]))
    (tmp_path / "two.tsv").write_text("".join(rows[1000:]))
    data = tmp_path / "data"
    assert stampede("prepare", "criteo", tmp_path / "one.tsv", "--recipe", "small", "--out", data).code == 0
    assert stampede("train", data, "--out", tmp_path / "run", *TINY).code == 0
    grow = ("--append", "day_2", "--grow-vocab", "--out", data)
    assert stampede("prepare", "criteo", tmp_path / "two.tsv", *grow).code == 0
    return tmp_path


def test_it_goes_on_from_the_run(stampede: Command, grown: Path) -> None:
    answer = stampede("train", grown / "data", "--init-from", grown / "run", *SPLITS, "--out", grown / "next")

    assert answer.code == 0, answer.err
    before = load_file(grown / "run" / "best" / "model.safetensors")
    after = load_file(grown / "next" / "best" / "model.safetensors")
    assert after["embedding.weight"].shape[0] > before["embedding.weight"].shape[0]
    state = load_file(grown / "next" / "best" / "optimizer.safetensors")
    assert int(state["0.step"]) == 9 + 5  # it counts on
    for command in (("evaluate", grown / "next", "--split", "day_2"), ("evaluate", grown / "run")):
        assert stampede(*command).code == 0


def test_what_is_not_in_the_day_moves_little(stampede: Command, grown: Path) -> None:
    """With rates of 0 nothing moves: the old rows are those of the run."""
    stampede(
        "train", grown / "data", "--init-from", grown / "run", *SPLITS, "--out", grown / "next",
        "--learning-rate", "0", "--embedding-learning-rate", "0", "--ema-decay", "0",
    )  # fmt: skip

    before = load_file(grown / "run" / "best" / "optimizer.safetensors")
    after = load_file(grown / "next" / "best" / "model.safetensors")
    name = "network.output.weight"
    assert torch.equal(after[name], before[f"weight.{name}"])


def test_it_resumes(stampede: Command, grown: Path) -> None:
    flags = ("--init-from", grown / "run", *SPLITS, "--epochs", "2")
    stampede("train", grown / "data", *flags, "--out", grown / "whole")
    stampede("train", grown / "data", *flags, "--out", grown / "next", "--max-steps", "3")

    answer = stampede(
        "train", grown / "data", *flags, "--out", grown / "next", "--resume", "--max-steps", "10"
    )

    assert answer.code == 0, answer.err
    assert (grown / "next/metrics.jsonl").read_text() == (grown / "whole/metrics.jsonl").read_text()


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (["--train-split", "day_9"], 2, "--train-split day_9: "),
        (["--model", "fm"], 1, "of another model"),
        (["--recipe", "small"], 2, "--init-from takes the values of its run"),
        (["--embedding-dim", "4"], 1, "of another model"),
    ],
)
def test_errors(stampede: Command, grown: Path, flags: list[str], code: int, said: str) -> None:
    answer = stampede("train", grown / "data", "--init-from", grown / "run", "--out", grown / "next", *flags)

    assert answer.code == code
    assert said in answer.err
    assert not (grown / "next").exists()


def test_another_dataset_is_refused(stampede: Command, grown: Path, small_log: Path, tmp_path: Path) -> None:
    stampede(
        "prepare", "criteo", small_log, "--recipe", "small", "--min-count", "9", "--out", tmp_path / "other"
    )

    answer = stampede("train", tmp_path / "other", "--init-from", grown / "run", "--out", tmp_path / "next")

    assert answer.code == 1
    assert "has another vocabulary of" in answer.err
