"""The pairwise products of a factorization machine (Rendle 2010, lemma 3.1)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from stampede.kernels.device import on_cpu


def pairwise_sum(embeddings: Tensor) -> Tensor:
    """Sum the products of all pairs of fields, in time linear in F.

    ``sum over f < g of e_f . e_g = 1/2 * sum over d of [(sum_f e_fd)^2 - sum_f e_fd^2]``

    Parameters
    ----------
    embeddings:
        ``[B, F, d]``.

    Returns
    -------
    Tensor
        ``[B]``; 0 for one field.
    """
    if torch.compiler.is_compiling() or not on_cpu(embeddings):
        return plain_pairwise_sum(embeddings)
    result: Tensor = _PairwiseSum.apply(embeddings)  # type: ignore[no-untyped-call]
    return result


def plain_pairwise_sum(embeddings: Tensor) -> Tensor:
    """Do it by plain torch: the definition of :func:`pairwise_sum`."""
    square_of_sum = embeddings.sum(1).square().sum(1)  # [B]
    sum_of_squares = embeddings.square().sum((1, 2))  # [B]
    return 0.5 * (square_of_sum - sum_of_squares)


class _PairwiseSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, embeddings: Tensor) -> Tensor:
        """Keep the sums over fields for the way back."""
        from stampede.kernels.cpu.pairwise import pairwise_forward

        result, sums = pairwise_forward(embeddings)
        ctx.save_for_backward(embeddings, sums)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grads: Tensor) -> Tensor:
        """Give ``g_b (s_b - e_bf)``."""
        from stampede.kernels.cpu.pairwise import pairwise_backward

        embeddings, sums = ctx.saved_tensors
        return pairwise_backward(grads.contiguous(), embeddings, sums)
