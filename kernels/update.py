"""The update of a table or of dense weights: L2, clip and Adam, by the fastest path there is for the tensors.

On a CPU, float32 and float64 tables go through numba kernels; on CUDA, float32 tables through CUDA kernels;
anything else takes the plain torch of :mod:`stampede.kernels.reference`, whose result all have.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from stampede.kernels.device import on_cpu, on_cuda
from stampede.kernels.reference.update import add_l2, apply_adam_, apply_cowclip_adam_
from stampede.kernels.rows import RowGradients


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
    """Update every row of a table in place: :func:`cowclip_adam_`, in one pass over (w, m, v).

    Parameters
    ----------
    weights, exp_avg, exp_avg_sq:
        ``[rows, d]``.
    gradients:
        The gradient of the batch alone, without the L2 term: of the rows that it has, or ``[rows, d]``.
    rate:
        The rate of this step with its bias corrections (:func:`corrected_rate`); on CUDA it may be a float32
        scalar there, so that a captured graph can be replayed with another one.
    counts:
        Integers ``[rows]``, with a gradient ``[rows, d]`` that is to be clipped.
    l2:
        The strength lambda of ``lambda * sum(w^2)``.
    clip:
        (ratio, zeta) of CowClip; None for no clip.
    betas, eps:
        Of Adam.

    Returns
    -------
    Tensor
        int64, 0-dimensional, on the table's device: how many rows were clipped.

    Raises
    ------
    ValueError
        A gradient ``[rows, d]`` of another shape, or without its counts.
    """
    if isinstance(gradients, Tensor):
        counted = clip is None or (counts is not None and counts.shape == weights.shape[:1])
        if gradients.shape != weights.shape or not counted:
            raise ValueError("a gradient [rows, d] is wanted, with counts [rows] where it is to be clipped")
    _check_shapes(weights, exp_avg, exp_avg_sq, gradients)
    options: dict[str, Any] = {"rate": rate, "l2": l2, "clip": clip, "betas": betas, "eps": eps}
    state: dict[str, Any] = {"exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq}
    sums = gradients.sums if isinstance(gradients, RowGradients) else gradients
    if on_cpu(weights, exp_avg, exp_avg_sq, sums) and isinstance(rate, float):
        from stampede.kernels.cpu import update

        increment_version((weights, exp_avg, exp_avg_sq))  # autograd sees no write by a kernel
        if isinstance(gradients, RowGradients):
            index = gradients.index
            return update.update_table(
                weights, sums, counts=index.counts, slots=index.slots, **state, **options
            )
        counts = None if counts is None else counts.to(torch.int32).contiguous()
        return update.update_table(weights, sums, counts=counts, slots=None, **state, **options)
    if on_cuda(weights, exp_avg, exp_avg_sq, sums):
        from stampede.kernels import cuda

        increment_version((weights, exp_avg, exp_avg_sq))  # autograd sees no write by a kernel
        return cuda.update_table(weights, gradients, counts=counts, **state, **options)
    if isinstance(gradients, RowGradients):
        counts = gradients.index.dense_counts()
        gradients = gradients.to_dense()
    return apply_cowclip_adam_(weights, gradients, counts=counts, **state, **options)


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
    """Update the rows of a batch alone, L2 included: what is called ``touched``, not the paper's algorithm.

    The other rows, their m and v stay as they are. Parameters and result as in :func:`update_table`.
    """
    options: dict[str, Any] = {"rate": rate, "l2": l2, "clip": clip, "betas": betas, "eps": eps}
    state: dict[str, Any] = {"exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq}
    _check_shapes(weights, exp_avg, exp_avg_sq, gradients)
    index, sums = gradients.index, gradients.sums
    if on_cpu(weights, exp_avg, exp_avg_sq, sums) and isinstance(rate, float):
        from stampede.kernels.cpu import update

        increment_version((weights, exp_avg, exp_avg_sq))  # autograd sees no write by a kernel
        return update.update_entries(weights, sums, rows=index.rows, counts=index.counts, **state, **options)
    if on_cuda(weights, exp_avg, exp_avg_sq, sums):
        from stampede.kernels import cuda

        increment_version((weights, exp_avg, exp_avg_sq))  # autograd sees no write by a kernel
        return cuda.update_entries(weights, gradients, **state, **options)
    used = index.counts > 0
    rows = index.rows[used]
    parts = [table[rows] for table in (weights, exp_avg, exp_avg_sq)]
    clipped = apply_cowclip_adam_(
        parts[0],
        sums[used],
        counts=index.counts[used],
        exp_avg=parts[1],
        exp_avg_sq=parts[2],
        **options,
    )
    for table, part in zip((weights, exp_avg, exp_avg_sq), parts, strict=True):
        table[rows] = part
    return clipped


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
    """Update weights of any shape in place by L2 and Adam (:func:`adam_`)."""
    _check_shapes(weights, exp_avg, exp_avg_sq, grads)
    options: dict[str, Any] = {"rate": rate, "betas": betas, "eps": eps}
    state: dict[str, Any] = {"exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq}
    if on_cpu(weights, exp_avg, exp_avg_sq) and isinstance(rate, float) and grads.dtype == weights.dtype:
        from stampede.kernels.cpu import update

        increment_version((weights, exp_avg, exp_avg_sq))  # autograd sees no write by a kernel
        update.update_values(weights, grads.contiguous(), l2=l2, **state, **options)
    elif on_cuda(weights, exp_avg, exp_avg_sq) and grads.dtype == torch.float32:
        from stampede.kernels import cuda

        increment_version((weights, exp_avg, exp_avg_sq))  # autograd sees no write by a kernel
        cuda.update_values(weights, grads.contiguous(), l2=l2, **state, **options)
    else:
        apply_adam_(weights, add_l2(grads, weights, l2=l2), **state, **options)


def _check_shapes(
    weights: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, gradients: RowGradients | Tensor
) -> None:
    """Raise :class:`ValueError` for tensors that do not belong together: kernels look no shape over."""
    if exp_avg.shape != weights.shape or exp_avg_sq.shape != weights.shape:
        raise ValueError(
            f"weights {list(weights.shape)} have means of {list(exp_avg.shape)} and {list(exp_avg_sq.shape)}"
        )
    if isinstance(gradients, Tensor):
        fits, shape = gradients.shape == weights.shape, list(gradients.shape)
    else:
        index, shape = gradients.index, list(gradients.sums.shape)
        entries = len(index.rows)
        fits = index.slots.shape == weights.shape[:1] and shape == [entries, weights.shape[1]]
    if not fits:
        raise ValueError(f"weights {list(weights.shape)} have a gradient of another table, {shape}")
