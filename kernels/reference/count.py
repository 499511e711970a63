"""How often each row of a table occurs in a batch: the ``count`` of the CowClip rule."""

from __future__ import annotations

import torch
from torch import Tensor


def count_rows(rows: Tensor, num_rows: int) -> Tensor:
    """Count how often each row occurs.

    ``counts[i] = |{n : rows[n] = i}|``, so a row that does not occur has 0; it is the clip that reads 0 as 1.

    Parameters
    ----------
    rows:
        int64 or int32, any shape: row numbers in ``[0, num_rows)``.
    num_rows:
        Rows of the table.

    Returns
    -------
    Tensor
        int32 ``[num_rows]`` on the device of ``rows``. Integer sums, so the same on every run and thread
        count.

    Raises
    ------
    TypeError
        ``rows`` are not integers.
    IndexError
        A row number is out of range (on CUDA: a device-side assertion).

    Example
    -------
    >>> count_rows(torch.tensor([2, 0, 2]), 4)
    tensor([1, 0, 2, 0], dtype=torch.int32)
    """
    if rows.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"row numbers must be int64 or int32, not {rows.dtype}")
    counts = torch.zeros(num_rows, dtype=torch.int32, device=rows.device)
    # One stored 1 stands for all N: no ones[N] is written, and no size depends on the data (bincount's
    # would).
    ones = torch.ones((), dtype=torch.int32, device=rows.device).expand(rows.numel())
    return counts.index_add_(0, rows.reshape(-1), ones)
