"""What tests of several folders share: small logs, a small dataset, a small run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

DATA = Path(__file__).parent / "data"

# so that helpers are importable as tests.…, however pytest was started
ROOT = str(Path(__file__).resolve().parents[1])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)


@dataclass(frozen=True)
class Answer:
    """What a command came to."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Command = Callable[..., Answer]


@pytest.fixture
def stampede(capfd: pytest.CaptureFixture[str]) -> Command:
    """Run the command line in this process."""
    from stampede.cli import main

    def run(*arguments: object) -> Answer:
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        assert isinstance(stop.value.code, int)
        return Answer(stop.value.code, out, err)

    return run


@pytest.fixture(scope="session")
def criteo_rows() -> Path:
    """9,000 real Criteo rows."""
    return DATA / "criteo_9k.tsv.gz"


@pytest.fixture(scope="session")
def small_log(tmp_path_factory: pytest.TempPathFactory, criteo_rows: Path) -> Path:
    """The first 1,500 of the real rows, as plain text."""
    import gzip

    log = tmp_path_factory.mktemp("log") / "small.tsv"
    with gzip.open(criteo_rows, "rb") as rows:
        log.write_bytes(b"".join(next(rows) for _ in range(1500)))
    return log


@pytest.fixture(scope="session")
def small_dataset(tmp_path_factory: pytest.TempPathFactory, small_log: Path) -> Path:
    """A dataset of 1,500 real rows with scaled dense features, 10% valid and 10% test."""
    from stampede.pipeline import Schema, prepare

    out = tmp_path_factory.mktemp("dataset") / "criteo"
    prepare(Schema.preset("criteo"), [small_log], out)
    return out


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory, small_dataset: Path) -> Path:
    """A run of two epochs on the small dataset, to read."""
    from stampede.workflows.train import run_train

    out = tmp_path_factory.mktemp("run") / "deepfm"
    given = {"hidden": (16,), "epochs": 2, "batch_size": 256, "device": "cpu", "threads": 1}
    run_train(small_dataset, out=out, recipe=None, given=given, force=False, say=lambda _line: None)
    return out


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Two test processes share two cores."""
    torch.set_num_threads(1)
