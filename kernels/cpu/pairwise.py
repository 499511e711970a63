"""The pairwise products of a factorization machine, without a temporary of the embeddings' size."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stampede.kernels.cpu.team import TASKS, TYPES, Kernel, array_at, next_task

_TASK_ROWS = 128


def pairwise_forward(embeddings: Tensor) -> tuple[Tensor, Tensor]:
    """Give ``1/2 sum_k [(sum_f e_fk)^2 - sum_f e_fk^2]``, ``[B]``, and the sums over fields ``[B, d]``.

    Parameters
    ----------
    embeddings:
        ``[B, F, d]``, contiguous, float32 or float64.
    """
    batch, fields, dim = embeddings.shape
    out, sums = embeddings.new_empty(batch), embeddings.new_empty(batch, dim)
    _forward_kernel(embeddings.dtype)(
        -(-batch // _TASK_ROWS), *(batch, fields, dim), *(embeddings, sums, out)
    )
    return out, sums


def pairwise_backward(grads: Tensor, embeddings: Tensor, sums: Tensor) -> Tensor:
    """Give the gradient of the embeddings: ``g_b (s_bk - e_bfk)``, ``[B, F, d]``."""
    batch, fields, dim = embeddings.shape
    out = torch.empty_like(embeddings)
    _backward_kernel(embeddings.dtype)(
        -(-batch // _TASK_ROWS), *(batch, fields, dim), *(embeddings, sums, grads, out)
    )
    return out


@cache
def _forward_kernel(dtype: torch.dtype) -> Kernel:
    value = TYPES[dtype]

    def kernel(a: Any) -> None:
        batch, fields, dim = a[2], a[3], a[4]
        embeddings = array_at(a[5], batch * fields * dim, value)
        sums = array_at(a[6], batch * dim, value)
        out = array_at(a[7], batch, value)
        squares = np.empty(dim, out.dtype)
        while True:
            task = next_task(a)
            if task >= a[TASKS]:
                break
            for b in range(task * _TASK_ROWS, min(batch, (task + 1) * _TASK_ROWS)):
                total = sums[b * dim : (b + 1) * dim]
                total[:] = 0
                squares[:] = 0
                for f in range(fields):
                    place = (b * fields + f) * dim
                    row = embeddings[place : place + dim]
                    for k in range(dim):
                        total[k] += row[k]
                        squares[k] += row[k] * row[k]
                result = value(0)
                for k in range(dim):
                    result += total[k] * total[k] - squares[k]
                out[b] = result * value(0.5)

    return Kernel(kernel)


@cache
def _backward_kernel(dtype: torch.dtype) -> Kernel:
    value = TYPES[dtype]

    def kernel(a: Any) -> None:
        batch, fields, dim = a[2], a[3], a[4]
        embeddings = array_at(a[5], batch * fields * dim, value)
        sums = array_at(a[6], batch * dim, value)
        grads = array_at(a[7], batch, value)
        out = array_at(a[8], batch * fields * dim, value)
        while True:
            task = next_task(a)
            if task >= a[TASKS]:
                break
            for b in range(task * _TASK_ROWS, min(batch, (task + 1) * _TASK_ROWS)):
                total, gradient = sums[b * dim : (b + 1) * dim], grads[b]
                for f in range(fields):
                    place = (b * fields + f) * dim
                    row, target = embeddings[place : place + dim], out[place : place + dim]
                    for k in range(dim):
                        target[k] = gradient * (total[k] - row[k])

    return Kernel(kernel)
