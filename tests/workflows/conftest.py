"""A small run, and a browser where the machine has one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.workflows.run_records import add_records


@pytest.fixture(scope="session")
def small_run(small_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three epochs on the small dataset, with records of its tables and timings."""
    from stampede.workflows.run import Run
    from stampede.workflows.train import run_train

    out = tmp_path_factory.mktemp("run") / "deepfm"
    given = {"hidden": (16,), "epochs": 3, "batch_size": 64, "device": "cpu"}
    run_train(small_dataset, out=out, recipe="small", given=given, force=False, say=lambda _line: None)
    if not (out / "timings.jsonl").exists():
        add_records(out, fields=list(Run.open(out).encoder.vocabularies), every=5)
    return out


@pytest.fixture
def run(small_run: Path, tmp_path: Path) -> Path:
    """A copy of the small run, to be changed."""
    return Path(shutil.copytree(small_run, tmp_path / "deepfm", symlinks=True))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium without a window; tests that need it are skipped where it or playwright is missing.

    It ends with its module: playwright runs once in a process.
    """
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("there is no chromium")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()
