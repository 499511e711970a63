"""What the tests of the documentation share: folders in memory, and small data made once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.docs.runner import PageRun, environment
from tests.docs.supplies import Supplies
from tests.pipeline.logs import memory_folder


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Stand in for pytest's own: the commands sync what they write, for which a disk takes long."""
    with memory_folder() as folder:
        yield folder


@pytest.fixture(scope="session")
def supplies(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Supplies:
    """Small data and runs, made once, also where several processes share the tests."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "supplies"
    return Supplies(folder, environment(base / "bin"))


@pytest.fixture
def page_run(tmp_path: Path, supplies: Supplies) -> Callable[[Path], PageRun]:
    """Make the run of a page in a folder of its own."""

    def make(page: Path) -> PageRun:
        folder = tmp_path / "work"
        folder.mkdir()
        return PageRun(page, folder, supplies, environment(tmp_path / "bin"))

    return make
