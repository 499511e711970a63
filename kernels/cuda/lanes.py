"""How a row of d values is shared out to the lanes of a warp; the other side of ``lanes.cuh``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

MAX_DIM = 128  # 32 lanes of 4 values
_VALUES = 4


@dataclass(frozen=True)
class Lanes:
    """The group of lanes of a row.

    Attributes
    ----------
    count:
        Lanes of a group: a power of 2, the least that holds the row.
    width:
        Values of one load: 4, 2 or 1. It divides d and every row is aligned to it.
    """

    count: int
    width: int

    @classmethod
    def of(cls, dim: int, *tensors: Tensor | None) -> Lanes:
        """Choose for rows of ``dim`` values that lie one after another in each of the tensors.

        Raises
        ------
        ValueError
            A row is too long or empty, or a tensor is no contiguous float32 one.
        """
        if not 1 <= dim <= MAX_DIM:
            raise ValueError(f"rows of 1 to {MAX_DIM} values are wanted, not {dim}")
        for tensor in tensors:
            if tensor is not None:
                check_values(tensor)
        width = next(
            width
            for width in (4, 2, 1)
            if dim % width == 0 and all(t is None or t.data_ptr() % (4 * width) == 0 for t in tensors)
        )
        count = 1
        while count * _VALUES < dim:
            count *= 2
        return cls(count, width)

    @property
    def arguments(self) -> tuple[np.generic, np.generic]:
        """The kernel's arguments ``lanes`` and ``width``."""
        return np.int32(self.count), np.int32(self.width)

    def blocks(self, rows: int, *, threads: int, unroll: int = 1) -> int:
        """How many blocks give each row a group, where a group takes ``unroll`` rows."""
        return -(-rows // (threads // self.count * unroll))


def check_values(*tensors: Tensor) -> None:
    """Raise ValueError for a tensor that is no contiguous float32 one."""
    for tensor in tensors:
        if tensor.dtype != torch.float32 or not tensor.is_contiguous():
            raise ValueError(f"contiguous float32 is wanted, not {tensor.dtype}, strides {tensor.stride()}")
