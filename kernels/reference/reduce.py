"""The gradient of a table: the gradients of its occurrences, summed per row."""

from __future__ import annotations

import torch
from torch import Tensor


def sum_rows(rows: Tensor, grads: Tensor, *, num_rows: int) -> Tensor:
    """Sum the gradients of all occurrences of a row: ``out[i] = sum of grads[n] over n with rows[n] = i``.

    The sum of a row runs over its occurrences in batch order, so it is the same on every run and thread
    count.

    Parameters
    ----------
    rows:
        int64 or int32 ``[N]``: row numbers in ``[0, num_rows)``.
    grads:
        ``[N, d]``, float32 or float64, strides as they come.
    num_rows:
        Rows of the table.

    Returns
    -------
    Tensor
        ``[num_rows, d]`` of the dtype of ``grads``; 0 where a row does not occur.

    Raises
    ------
    ValueError
        The shapes do not fit.
    IndexError, RuntimeError
        A row number is out of range (on CUDA: a device-side assertion).
    """
    if rows.dim() != 1 or grads.dim() != 2 or grads.shape[0] != rows.shape[0]:
        raise ValueError(
            f"rows [N] and grads [N, d] are wanted, not {list(rows.shape)} and {list(grads.shape)}"
        )
    out = grads.new_zeros(num_rows, grads.shape[1])
    if grads.is_cuda:
        # index_add_ uses atomics there, in no fixed order; this one sorts the rows first, and stably.
        return out.index_put_((rows.to(torch.int64),), grads, accumulate=True)
    return out.index_add_(0, rows, grads)
