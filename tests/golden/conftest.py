import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Golden:
    """One NAME.npz with the NAME.json beside it."""

    facts: dict[str, Any]
    arrays: dict[str, NDArray[Any]]

    def tensor(self, name: str, *, dtype: torch.dtype | None = None) -> Tensor:
        tensor = torch.from_numpy(self.arrays[name])
        return tensor if dtype is None else tensor.to(dtype)


@pytest.fixture(scope="session")
def load_golden() -> Callable[[str], Golden]:
    def load(name: str) -> Golden:
        path = Path(__file__).parent / name
        with np.load(path.with_suffix(".npz")) as arrays:
            return Golden(json.loads(path.with_suffix(".json").read_text()), dict(arrays))

    return load
