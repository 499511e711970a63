from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor


@pytest.fixture
def sparse_file() -> Callable[[Path, int, int], Tensor]:
    """A function that maps a file of zeros, float32 [rows, dim], to a tensor."""
    return _sparse_file


def _sparse_file(path: Path, rows: int, dim: int) -> Tensor:
    """Map a file of zeros that takes up neither disk nor memory until it is written to."""
    try:
        with path.open("wb") as file:
            file.truncate(rows * dim * 4)
    except OSError as error:
        pytest.skip(f"no file of {rows * dim * 4} bytes here: {error}")
    if path.stat().st_blocks * 512 > 1 << 20:
        pytest.skip("the file system has no sparse files")
    table = torch.from_file(str(path), shared=True, size=rows * dim, dtype=torch.float32)
    return table.view(rows, dim)
