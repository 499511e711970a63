"""The next batch of a dataset that lies in device memory, by a numba-cuda kernel."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stampede.kernels.cuda.numba_arrays import as_array, cuda, current_stream, grid

LANES = 32  # of a row, one warp: a row's ids lie together
ROWS = 8  # of a block


class Batch(NamedTuple):
    """Rows of a dataset.

    Attributes
    ----------
    ids:
        int32 ``[B, F]``.
    dense:
        float32 or bfloat16 ``[B, D]``.
    labels:
        int8 ``[B]``.
    """

    ids: Tensor
    dense: Tensor
    labels: Tensor


def gather_batch(rows: Batch, order: Tensor, *, out: Batch | None = None) -> Batch:
    """Take rows ``order`` of a dataset: ``out.ids[b] = rows.ids[order[b]]`` and so on, in one kernel.

    Parameters
    ----------
    rows:
        The whole dataset on a CUDA device, ``[N, ...]``, contiguous.
    order:
        int64 ``[B]``: which rows; nothing checks that they are there.
    out:
        Where the rows go (the inputs of a captured graph); new tensors without it.

    Returns
    -------
    Batch
        ``out``.
    """
    if out is None:
        out = Batch(*(part.new_empty(len(order), *part.shape[1:]) for part in rows))
    for source, target in zip(rows, out, strict=True):
        if target.dtype != source.dtype or target.shape != (len(order), *source.shape[1:]):
            raise ValueError(
                f"{list(target.shape)} {target.dtype} cannot take {len(order)} rows of "
                f"{list(source.shape)} {source.dtype}"
            )
    if len(order) > 0:
        blocks = grid(-(-len(order) // ROWS))
        arrays = [as_array(tensor) for tensor in (*rows, order, *out)]
        with torch.cuda.device(order.device if order.is_cuda else -1):  # -1: none, in the simulator
            _kernel()[blocks, (LANES, ROWS), current_stream(order.device)](*arrays)
    return out


def gather_rows(
    ids: Any, dense: Any, labels: Any, order: Any, out_ids: Any, out_dense: Any, out_labels: Any
) -> None:
    """Copy rows: the kernel. A row of a block's threads takes a row of the batch."""
    lane = cuda.threadIdx.x
    for b in range(cuda.blockIdx.x * ROWS + cuda.threadIdx.y, order.shape[0], cuda.gridDim.x * ROWS):
        n = order[b]
        for f in range(lane, ids.shape[1], LANES):
            out_ids[b, f] = ids[n, f]
        for k in range(lane, dense.shape[1], LANES):
            out_dense[b, k] = dense[n, k]
        if lane == 0:
            out_labels[b] = labels[n]


@cache
def _kernel() -> Any:
    return cuda.jit(gather_rows)
