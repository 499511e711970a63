"""What the tests of the pipeline share: folders in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.pipeline.logs import memory_folder


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Stand in for pytest's own: publishing a dataset syncs every file, for which a disk takes long."""
    with memory_folder() as folder:
        yield folder
