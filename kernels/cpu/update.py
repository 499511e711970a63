"""L2, clip and Adam over the rows of a table, in one pass over (w, m, v)."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from stampede.kernels.cpu.team import TASKS, TYPES, Kernel, array_at, float_of, next_task, prefetch

_TASK_VALUES = 65_536  # values a task: three arrays of 256 KB of float32
_BLOCK_VALUES = 512  # with their w, m, v and gradients 8 KB of float32: more, and the first cache thrashes
_SCAN_ROWS = 16  # slots that are looked at together
_AHEAD = 8  # entries between the request of a row and its use
_int32, _int64 = TYPES[torch.int32], TYPES[torch.int64]
_NEVER_CLIPPED = 0.99  # of the ratio: a margin for the rounding of two norms


@njit(error_model="numpy", fastmath={"contract"})
def adam_values(
    weights: Any,
    exp_avg: Any,
    exp_avg_sq: Any,
    grads: Any,
    adam: Any,
) -> None:
    """Update values by Adam in the form of Keras; all arguments are of one type, so that it vectorises."""
    beta1, rest1, beta2, rest2, rate, eps, tiny = adam
    zero = weights.dtype.type(0)
    for k in range(weights.shape[0]):
        gradient = grads[k]
        m = beta1 * exp_avg[k] + rest1 * gradient
        v = beta2 * exp_avg_sq[k] + (rest2 * gradient) * gradient
        m = zero if abs(m) < tiny else m
        v = zero if v < tiny else v
        exp_avg[k] = m
        exp_avg_sq[k] = v
        weights[k] -= rate * m / (np.sqrt(v) + eps)


@njit(inline="always")
def scalars_at(arguments: Any, place: int, weights: Any) -> Any:
    """Read what :func:`_scalars` packed, in the type of the weights: twice the L2 strength, and Adam's."""
    number = weights.dtype.type
    adam = (
        number(float_of(arguments[place + 1])),
        number(float_of(arguments[place + 2])),
        number(float_of(arguments[place + 3])),
        number(float_of(arguments[place + 4])),
        number(float_of(arguments[place + 5])),
        number(float_of(arguments[place + 6])),
        number(float_of(arguments[place + 7])),
    )
    return number(float_of(arguments[place])), adam


@njit(error_model="numpy", fastmath={"contract"})
def clip_row(gradient: Any, weights: Any, count: Any, ratio: Any, floor: Any) -> bool:
    """Bound the gradient of one row in place; give whether it was more than its threshold."""
    weight_square = gradient_square = weights.dtype.type(0)
    for k in range(weights.shape[0]):
        weight_square += weights[k] * weights[k]
        gradient_square += gradient[k] * gradient[k]
    norm = np.sqrt(weight_square)
    limit = floor if norm < floor else norm  # NaN stays, and clips nothing
    threshold = limit * count * ratio
    norm = np.sqrt(gradient_square)
    if not norm > threshold:
        return False
    scale = threshold / norm
    for k in range(weights.shape[0]):
        gradient[k] *= scale
    return True


def update_table(
    weights: Tensor,
    sums: Tensor,
    *,
    counts: Tensor | None,
    slots: Tensor | None,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    rate: float,
    l2: float,
    clip: tuple[float, float] | None,
    betas: tuple[float, float],
    eps: float,
) -> Tensor:
    """Update every row of a table; see ``update_table`` of :mod:`stampede.kernels.update`."""
    num_rows, dim = weights.shape
    task_rows = max(1, _TASK_VALUES // dim)
    tasks = -(-num_rows // task_rows)
    clipped = torch.zeros(max(tasks, 1), dtype=torch.int64)
    ratio, zeta = map(float, clip or (1.0, 0.0))  # kernels take integers for integers
    nothing = clipped[:0]
    _table_kernel(weights.dtype)(
        tasks,
        *(num_rows, dim, task_rows, sums.shape[0], slots is not None, clip is not None),
        # A row that the batch does not have has the gradient 2 * l2 * w, of norm 2 * l2 * ||w||: within its
        # threshold, which is ratio * ||w|| or more, unless l2 is enormous.
        clip is not None and not 2 * l2 < _NEVER_CLIPPED * ratio,
        *(weights, exp_avg, exp_avg_sq, sums),
        *(nothing if counts is None else counts, nothing if slots is None else slots, clipped),
        *_scalars(weights, rate=rate, l2=l2, betas=betas, eps=eps),
        *(ratio, ratio * math.sqrt(dim) * zeta),
    )
    return clipped.sum()


def update_entries(
    weights: Tensor,
    sums: Tensor,
    *,
    rows: Tensor,
    counts: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    rate: float,
    l2: float,
    clip: tuple[float, float] | None,
    betas: tuple[float, float],
    eps: float,
) -> Tensor:
    """Update the rows of the batch alone; see ``update_entries`` of :mod:`stampede.kernels.update`."""
    num_rows, dim = weights.shape
    entries = rows.shape[0]
    task_entries = max(1, _TASK_VALUES // dim // 32)
    tasks = -(-entries // task_entries)
    clipped = torch.zeros(max(tasks, 1), dtype=torch.int64)
    ratio, zeta = map(float, clip or (1.0, 0.0))  # kernels take integers for integers
    _entry_kernel(weights.dtype)(
        tasks,
        *(num_rows, dim, task_entries, entries, clip is not None),
        *(weights, exp_avg, exp_avg_sq, sums, rows, counts, clipped),
        *_scalars(weights, rate=rate, l2=l2, betas=betas, eps=eps),
        *(ratio, ratio * math.sqrt(dim) * zeta),
    )
    return clipped.sum()


def update_values(
    weights: Tensor,
    grads: Tensor,
    *,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    rate: float,
    l2: float,
    betas: tuple[float, float],
    eps: float,
) -> None:
    """Update values of any shape, contiguous, by L2 and Adam."""
    values = weights.numel()
    _value_kernel(weights.dtype)(
        -(-values // _TASK_VALUES),
        *(values, weights, exp_avg, exp_avg_sq, grads),
        *_scalars(weights, rate=rate, l2=l2, betas=betas, eps=eps),
    )


def _scalars(
    weights: Tensor, *, rate: float, l2: float, betas: tuple[float, float], eps: float
) -> tuple[float, ...]:
    beta1, beta2 = map(float, betas)
    tiny = torch.finfo(weights.dtype).tiny
    return (2.0 * l2, beta1, 1 - beta1, beta2, 1 - beta2, float(rate), float(eps), tiny)


@cache
def _table_kernel(dtype: torch.dtype) -> Kernel:
    value, size = TYPES[dtype], dtype.itemsize

    def kernel(a: Any) -> None:
        num_rows, dim, task_rows, entries, has_slots, clips, checks_all = (
            a[2],
            a[3],
            a[4],
            a[5],
            a[6],
            a[7],
            a[8],
        )
        weights = array_at(a[9], num_rows * dim, value)
        exp_avg = array_at(a[10], num_rows * dim, value)
        exp_avg_sq = array_at(a[11], num_rows * dim, value)
        sums = array_at(a[12], entries * dim, value)
        counts = array_at(a[13], entries * clips, _int32)
        slots = array_at(a[14], num_rows * has_slots, _int32)
        clipped = array_at(a[15], a[TASKS], _int64)
        decay, adam = scalars_at(a, 16, weights)
        ratio, floor = value(float_of(a[24])), value(float_of(a[25]))
        block_rows = max(1, _BLOCK_VALUES // dim)
        grads = np.empty(block_rows * dim, weights.dtype)
        present = np.empty(block_rows, np.int64)
        while True:
            task = next_task(a)
            if task >= a[TASKS]:
                break
            task_end = min(num_rows, (task + 1) * task_rows)
            for first in range(task * task_rows, task_end, block_rows):
                last = min(task_end, first + block_rows)
                block = weights[first * dim : last * dim]
                found = 0  # rows that the batch has
                row = first
                while row < last:
                    if has_slots and last - row >= _SCAN_ROWS:
                        scanned = slots[row : row + _SCAN_ROWS]
                        highest = _int32(-1)
                        for k in range(_SCAN_ROWS):  # a constant, so that it is a handful of instructions
                            highest = max(highest, scanned[k])
                        if highest < 0:
                            row += _SCAN_ROWS
                            continue
                    for _ in range(min(_SCAN_ROWS, last - row)):  # no branch, which could not be foretold
                        present[found] = row
                        found += 1 if not has_slots or slots[row] >= 0 else 0
                        row += 1
                if has_slots:
                    # Their sums and counts lie in the order of the batch: random accesses, asked for at once.
                    for n in range(found):
                        entry = _int64(slots[present[n]])
                        prefetch(a[12] + entry * dim * size)
                        prefetch(a[12] + ((entry + 1) * dim - 1) * size)
                        if clips:
                            prefetch(a[13] + 4 * entry)
                if decay == 0:  # not 0 * w, which is NaN for infinite weights
                    grads[:] = 0
                else:
                    for k in range(block.shape[0]):
                        grads[k] = decay * block[k]
                for n in range(found):
                    row = present[n]
                    entry = _int64(slots[row]) if has_slots else row
                    source = sums[entry * dim : (entry + 1) * dim]
                    here = slice((row - first) * dim, (row - first + 1) * dim)
                    gradient = grads[here]
                    for k in range(dim):
                        gradient[k] += source[k]
                    if clips and not checks_all:
                        count = value(max(counts[entry], 1))
                        if clip_row(gradient, block[here], count, ratio, floor):
                            clipped[task] += 1
                if checks_all:
                    for row in range(first, last):
                        entry = _int64(slots[row]) if has_slots else row
                        count = value(1) if entry < 0 else value(max(counts[entry], 1))
                        here = slice((row - first) * dim, (row - first + 1) * dim)
                        if clip_row(grads[here], block[here], count, ratio, floor):
                            clipped[task] += 1
                adam_values(
                    block,
                    exp_avg[first * dim : last * dim],
                    exp_avg_sq[first * dim : last * dim],
                    grads,
                    adam,
                )

    return Kernel(kernel)


@cache
def _entry_kernel(dtype: torch.dtype) -> Kernel:
    value, size = TYPES[dtype], dtype.itemsize

    def kernel(a: Any) -> None:
        num_rows, dim, task_entries, entries, clips = a[2], a[3], a[4], a[5], a[6]
        weights = array_at(a[7], num_rows * dim, value)
        exp_avg = array_at(a[8], num_rows * dim, value)
        exp_avg_sq = array_at(a[9], num_rows * dim, value)
        sums = array_at(a[10], entries * dim, value)
        rows = array_at(a[11], entries, _int64)
        counts = array_at(a[12], entries, _int32)
        clipped = array_at(a[13], a[TASKS], _int64)
        decay, adam = scalars_at(a, 14, weights)
        ratio, floor = value(float_of(a[22])), value(float_of(a[23]))
        gradient = np.empty(dim, weights.dtype)
        while True:
            task = next_task(a)
            if task >= a[TASKS]:
                break
            task_end = min(entries, (task + 1) * task_entries)
            for entry in range(task * task_entries, task_end):
                soon = min(entry + _AHEAD, task_end - 1)
                if counts[soon] > 0:  # its row is a random access, in three tables
                    for k in range(7, 10):
                        prefetch(a[k] + rows[soon] * dim * size)
                        prefetch(a[k] + ((rows[soon] + 1) * dim - 1) * size)
                if counts[entry] == 0:
                    continue
                place = rows[entry] * dim
                row = weights[place : place + dim]
                source = sums[entry * dim : (entry + 1) * dim]
                for k in range(dim):
                    gradient[k] = source[k] if decay == 0 else source[k] + decay * row[k]
                if clips and clip_row(gradient, row, value(counts[entry]), ratio, floor):
                    clipped[task] += 1
                adam_values(
                    row,
                    exp_avg[place : place + dim],
                    exp_avg_sq[place : place + dim],
                    gradient,
                    adam,
                )

    return Kernel(kernel)


@cache
def _value_kernel(dtype: torch.dtype) -> Kernel:
    value = TYPES[dtype]

    def kernel(a: Any) -> None:
        values = a[2]
        weights = array_at(a[3], values, value)
        exp_avg = array_at(a[4], values, value)
        exp_avg_sq = array_at(a[5], values, value)
        grads = array_at(a[6], values, value)
        decay, adam = scalars_at(a, 7, weights)
        summed = np.empty(_BLOCK_VALUES, weights.dtype)
        while True:
            task = next_task(a)
            if task >= a[TASKS]:
                break
            task_end = min(values, (task + 1) * _TASK_VALUES)
            for first in range(task * _TASK_VALUES, task_end, _BLOCK_VALUES):
                last = min(task_end, first + _BLOCK_VALUES)
                block, source = weights[first:last], grads[first:last]
                for k in range(block.shape[0]):
                    summed[k] = source[k] if decay == 0 else source[k] + decay * block[k]
                adam_values(
                    block,
                    exp_avg[first:last],
                    exp_avg_sq[first:last],
                    summed,
                    adam,
                )

    return Kernel(kernel)
