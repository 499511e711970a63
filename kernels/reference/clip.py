"""Adaptive column-wise clipping of a table's gradient (CowClip, arXiv 2204.06240, algorithm 1)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_BLOCK_ROWS = 65_536


def clip_rows(
    grads: Tensor, weights: Tensor, *, counts: Tensor, ratio: float = 1.0, zeta: float = 1e-5
) -> tuple[Tensor, Tensor]:
    """Bound the gradient of each row by the row's own norm times how often its id occurs in the batch.

    For row i of d values, ``c = max(counts[i], 1)``::

        threshold_i = ratio * c * max(||w_i||, ratio * sqrt(d) * zeta)
        g_i         = g_i * threshold_i / ||g_i||     if ||g_i|| > threshold_i, else g_i

    The ratio stands in the floor too, as in the authors' program, so the least threshold is ``ratio^2 *
    sqrt(d) * zeta * c``. A row within its threshold comes back bit for bit; a zero gradient stays 0, also
    where the threshold is 0. NaN and infinite gradients stay visible (NaN). A norm is summed in the dtype
    of the gradient: in float32 a finite row whose squares overflow (values past 1e19) becomes 0, and one
    whose squares all underflow (below 1e-23) is left alone.

    Parameters
    ----------
    grads:
        ``[rows, d]``, the whole gradient of the table, its L2 term included.
    weights:
        ``[rows, d]``, the table.
    counts:
        Integers ``[rows]``: how often each row occurs in the batch. 0 is read as 1.
    ratio:
        r in the formula.
    zeta:
        The floor, per value, under the norm of a row.

    Returns
    -------
    tuple[Tensor, Tensor]
        The clipped gradient ``[rows, d]``, a new tensor, and bool ``[rows]``: which rows were clipped.

    Raises
    ------
    ValueError
        The shapes do not fit.
    """
    if grads.dim() != 2 or grads.shape != weights.shape or counts.shape != grads.shape[:1]:
        raise ValueError(
            "grads [rows, d], weights [rows, d] and counts [rows] are wanted, not "
            f"{list(grads.shape)}, {list(weights.shape)} and {list(counts.shape)}"
        )
    floor = ratio * math.sqrt(grads.shape[1]) * zeta
    limits = row_norms(weights).clamp_(min=floor)  # [rows]
    thresholds = limits.mul_(counts.clamp(min=1)).mul_(ratio)  # [rows]
    return _scale_rows(grads, row_norms(grads), thresholds)


def clip_columns(grads: Tensor, *, limit: float) -> tuple[Tensor, Tensor]:
    """Bound the gradient of each row by one limit: ``g_i * limit / ||g_i||`` where ``||g_i|| > limit``.

    Parameters
    ----------
    grads:
        ``[rows, d]``.
    limit:
        The largest norm that a row may have.

    Returns
    -------
    tuple[Tensor, Tensor]
        As of :func:`clip_rows`.
    """
    norms = row_norms(grads)  # [rows]
    return _scale_rows(grads, norms, torch.full_like(norms, limit))


def clip_all(grads: Tensor, *, norm: Tensor, limit: float) -> tuple[Tensor, Tensor]:
    """Bound a gradient by a norm that it shares with others: ``g * limit / norm`` where ``norm > limit``.

    Parameters
    ----------
    grads:
        ``[rows, d]``.
    norm:
        0-dimensional: that of all gradients which are bounded together.
    limit:
        The largest norm that they may have.

    Returns
    -------
    tuple[Tensor, Tensor]
        As of :func:`clip_rows`; all rows are clipped, or none.
    """
    norms = norm.to(grads.dtype).expand(len(grads))
    return _scale_rows(grads, norms, torch.full_like(norms, limit))


def clip_fields(grads: Tensor, *, fields: Tensor, limits: Tensor) -> tuple[Tensor, Tensor]:
    """Bound the gradient of each field's table, all its rows together, by the field's limit.

    Parameters
    ----------
    grads:
        ``[rows, d]``.
    fields:
        int64 ``[rows]``: the field of each row.
    limits:
        ``[F]``.

    Returns
    -------
    tuple[Tensor, Tensor]
        As of :func:`clip_rows`; a field's rows are clipped together.
    """
    norms = field_norms(grads, fields=fields, num_fields=len(limits))  # [F]
    return _scale_rows(grads, norms[fields], limits[fields])


def field_norms(values: Tensor, *, fields: Tensor, num_fields: int) -> Tensor:
    """Give the norm of each field's rows ``[rows, d]`` taken together, ``[F]``; summed in float64."""
    blocks = torch.split(values, _BLOCK_ROWS)  # so that no float64 copies of the whole table are made
    squares = torch.cat([block.to(torch.float64).square().sum(1) for block in blocks])  # [rows]
    total = squares.new_zeros(num_fields).index_add_(0, fields, squares)  # [F]
    return total.sqrt().to(values.dtype)


def row_norms(values: Tensor) -> Tensor:
    """Give the norm of each row ``[rows, d]``, ``[rows]``: by squares also where d is 1, as for any d."""
    return values.square().sum(1).sqrt_()


def _scale_rows(grads: Tensor, norms: Tensor, limits: Tensor) -> tuple[Tensor, Tensor]:
    clipped = norms > limits  # false for a NaN norm, so NaN passes on as it is
    # Rows within their limit are multiplied by 1 exactly: g * t / max(n, t) would move some by an ulp.
    scales = torch.where(clipped, limits / norms, 1.0)
    return grads * scales.unsqueeze(1), clipped
