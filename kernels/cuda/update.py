"""L2, CowClip and Adam in one pass, over a table, over the rows of a batch, or over dense weights."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from stampede.kernels.cuda.lanes import Lanes, check_values
from stampede.kernels.cuda.launch import Argument, Kernel, launch
from stampede.kernels.rows import RowGradients

_TABLE = Kernel("update", "update_table")
_ENTRIES = Kernel("update", "update_entries")
_VALUES = Kernel("update", "update_values")
_UNROLL = 4  # values a thread takes


def update_table(
    weights: Tensor,
    gradients: RowGradients | Tensor,
    *,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    rate: float | Tensor,
    counts: Tensor | None = None,
    l2: float = 0.0,
    clip: tuple[float, float] | None = None,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-7,
) -> Tensor:
    """Update every row of a table in place; see :func:`stampede.kernels.update.update_table`.

    The slots are read and left as they are: tables of one index follow each other, and
    :meth:`CudaRowAccumulator.clear` resets them at the cost of the batch.

    Parameters
    ----------
    weights, exp_avg, exp_avg_sq:
        float32 ``[num_rows, d]``, contiguous.
    gradients:
        Of the rows that the batch has, or float32 ``[num_rows, d]``.
    rate:
        A number, or a float32 scalar on the device that a replayed graph reads anew.
    counts:
        int32 ``[num_rows]``, with a gradient ``[num_rows, d]``; 1 for each without them.

    Returns
    -------
    Tensor
        int64, 0-dimensional, on the device: how many rows were clipped.
    """
    slots = None
    if isinstance(gradients, RowGradients):
        counts, slots = gradients.index.counts, gradients.index.slots
        sums = gradients.sums
    else:
        sums = gradients
    return _update_rows(
        _TABLE,
        weights,
        exp_avg,
        exp_avg_sq,
        sums,
        counts,
        slots,
        work=weights.shape[0],
        rule=_rule(weights, rate=rate, l2=l2, betas=betas, eps=eps),
        clip=clip,
    )


def update_entries(
    weights: Tensor,
    gradients: RowGradients,
    *,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    rate: float | Tensor,
    l2: float = 0.0,
    clip: tuple[float, float] | None = None,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-7,
) -> Tensor:
    """Update the rows of the batch alone (``touched``); parameters and result as in :func:`update_table`."""
    index = gradients.index
    return _update_rows(
        _ENTRIES,
        weights,
        exp_avg,
        exp_avg_sq,
        gradients.sums,
        index.counts,
        index.rows,
        work=index.rows.shape[0],
        rule=_rule(weights, rate=rate, l2=l2, betas=betas, eps=eps),
        clip=clip,
    )


def update_values(
    weights: Tensor,
    grads: Tensor,
    *,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    rate: float | Tensor,
    l2: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-7,
) -> None:
    """Update float32 weights of any shape, contiguous, in place by L2 and Adam."""
    check_values(weights, exp_avg, exp_avg_sq, grads)
    total = weights.numel()
    launch(
        _VALUES,
        *(weights, exp_avg, exp_avg_sq, grads, np.int64(total)),
        *_rule(weights, rate=rate, l2=l2, betas=betas, eps=eps),
        blocks=-(-total // (_VALUES.threads * _UNROLL)),
        device=weights.device,
    )


def _rule(
    weights: Tensor, *, rate: float | Tensor, l2: float, betas: tuple[float, float], eps: float
) -> tuple[Argument, ...]:
    """Give the kernels' arguments from ``rate`` to ``eps``; 1 - beta is rounded once, as in the reference."""
    if not isinstance(rate, Tensor):
        rate = torch.full((), rate, dtype=torch.float32, device=weights.device)
    check_values(rate)
    numbers = (2 * l2, *betas, *(1 - beta for beta in betas), eps)
    return (rate, *(np.float32(number) for number in numbers))


def _update_rows(
    kernel: Kernel,
    weights: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    sums: Tensor,
    counts: Tensor | None,
    places: Tensor | None,
    *,
    work: int,
    rule: tuple[Argument, ...],
    clip: tuple[float, float] | None,
) -> Tensor:
    """Queue a kernel of rows; ``places`` are the slots of a table's rows, or the rows of the entries."""
    dim = weights.shape[1]
    ratio, zeta = clip or (1.0, 0.0)
    clipped = torch.zeros((), dtype=torch.int64, device=weights.device)
    lanes = Lanes.of(dim, weights, exp_avg, exp_avg_sq, sums)
    launch(
        kernel,
        *(weights, exp_avg, exp_avg_sq, sums, counts, places),
        *(np.int64(work), np.int32(dim), *lanes.arguments),
        *(*rule, np.int32(clip is not None)),
        *(np.float32(ratio), np.float32(ratio * math.sqrt(dim) * zeta), clipped),
        blocks=lanes.blocks(work, threads=kernel.threads),
        device=weights.device,
    )
    return clipped
