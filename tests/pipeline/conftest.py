"""Makes the helpers of these tests importable as tests.pipeline.…, however pytest was started."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Stand in for pytest's own: publishing a dataset syncs every file, for which a disk takes long."""
    from tests.pipeline.logs import memory_folder

    with memory_folder() as folder:
        yield folder
