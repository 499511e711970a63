"""Counts and gradient sums of a batch, row by row, at a cost that follows the batch and not the table."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from stampede.kernels.cpu.gather import NONE_BAD, raise_if_bad
from stampede.kernels.cpu.team import TASKS, TYPES, Kernel, array_at, next_task, prefetch

_AHEAD = 16  # occurrences between the request of a slot, a random access, and its use
_int32, _int64 = TYPES[torch.int32], TYPES[torch.int64]


def accumulate(
    ids: Tensor,
    grads: Tensor,
    linear_grads: Tensor | None,
    *,
    offsets: Tensor,
    starts: Tensor,
    used: Tensor,
    rows: Tensor,
    counts: Tensor,
    slots: Tensor,
    sums: Tensor,
    linear_sums: Tensor | None,
) -> None:
    """Take a piece of a batch into the entries of its rows.

    A field is one task, and fields share no rows, so a row's gradients are added in batch order by one
    thread: the same bits on any number of threads, and no atomics.

    Parameters
    ----------
    ids:
        int32 or int64 ``[b, F]``, contiguous, in their fields' ranges.
    grads:
        ``[b, F, d]``, the last dimension contiguous.
    linear_grads:
        ``[b]``, the gradient of each of a row's F first-order weights.
    offsets:
        int64 ``[F + 1]``: the first row of each field, and the rows of all.
    starts, used:
        int64 ``[F]``: the first entry of each field, and how many are in use; ``used`` is updated.
    rows, counts, slots, sums, linear_sums:
        See :class:`stampede.kernels.rows.RowIndex` and ``RowGradients``; updated.

    Raises
    ------
    IndexError
        A field does not have an id; what was summed by then is undefined.
    """
    batch, fields = ids.shape
    if batch == 0:
        return
    bad = torch.full((1,), NONE_BAD)
    nothing = sums[:0]
    _accumulate_kernel(grads.dtype, ids.dtype)(
        fields,
        *(batch, fields, sums.shape[1], linear_grads is not None),
        *(slots.shape[0], rows.shape[0], grads.stride(0), grads.stride(1)),
        *(ids, grads, nothing if linear_grads is None else linear_grads),
        *(offsets, starts, used, rows, counts, slots),
        *(sums, nothing if linear_sums is None else linear_sums, bad),
    )
    raise_if_bad(bad, ids, offsets)


def clear_slots(starts: Tensor, used: Tensor, rows: Tensor, counts: Tensor, slots: Tensor) -> None:
    """Forget the entries in use: their slots become -1, their counts and ``used`` 0."""
    _clear_kernel()(starts.shape[0], rows.shape[0], slots.shape[0], starts, used, rows, counts, slots)


@cache
def _accumulate_kernel(value_dtype: torch.dtype, id_dtype: torch.dtype) -> Kernel:
    value, integer, size = TYPES[value_dtype], TYPES[id_dtype], value_dtype.itemsize

    def kernel(a: Any) -> None:
        batch, fields, dim, has_linear = a[2], a[3], a[4], a[5]
        num_rows, entries, stride_b, stride_f = a[6], a[7], a[8], a[9]
        ids = array_at(a[10], batch * fields, integer)
        grads = array_at(a[11], (batch - 1) * stride_b + (fields - 1) * stride_f + dim, value)
        linear_grads = array_at(a[12], batch * has_linear, value)
        offsets = array_at(a[13], fields + 1, _int64)
        starts = array_at(a[14], fields, _int64)
        used = array_at(a[15], fields, _int64)
        rows = array_at(a[16], entries, _int64)
        counts = array_at(a[17], entries, _int32)
        slots = array_at(a[18], num_rows, _int32)
        sums = array_at(a[19], entries * dim, value)
        linear_sums = array_at(a[20], entries * has_linear, value)
        bad = array_at(a[21], 1, _int64)
        while True:
            f = next_task(a)
            if f >= a[TASKS]:
                break
            free = starts[f] + used[f]
            for b in range(batch):
                if b + _AHEAD < batch:
                    prefetch(a[18] + 4 * (ids[(b + _AHEAD) * fields + f] + offsets[f]))
                    prefetch(a[11] + size * ((b + _AHEAD) * stride_b + f * stride_f))
                    prefetch(a[11] + size * ((b + _AHEAD) * stride_b + f * stride_f + dim - 1))
                row = ids[b * fields + f] + offsets[f]  # of an enormous id it may be any row
                if ids[b * fields + f] < 0 or ids[b * fields + f] >= offsets[f + 1] - offsets[f]:
                    bad[0] = b * fields + f
                    break
                entry = _int64(slots[row])
                place = b * stride_b + f * stride_f
                source = grads[place : place + dim]
                if entry < 0:
                    entry = free
                    free += 1
                    slots[row] = entry
                    rows[entry] = row
                    counts[entry] = 1
                    target = sums[entry * dim : (entry + 1) * dim]
                    for k in range(dim):
                        target[k] = source[k]
                    if has_linear:
                        linear_sums[entry] = linear_grads[b]
                else:
                    counts[entry] += 1
                    target = sums[entry * dim : (entry + 1) * dim]
                    for k in range(dim):
                        target[k] += source[k]
                    if has_linear:
                        linear_sums[entry] += linear_grads[b]
            used[f] = free - starts[f]

    return Kernel(kernel)


@cache
def _clear_kernel() -> Kernel:
    def kernel(a: Any) -> None:
        entries, num_rows = a[2], a[3]
        starts = array_at(a[4], a[TASKS], _int64)
        used = array_at(a[5], a[TASKS], _int64)
        rows = array_at(a[6], entries, _int64)
        counts = array_at(a[7], entries, _int32)
        slots = array_at(a[8], num_rows, _int32)
        while True:
            f = next_task(a)
            if f >= a[TASKS]:
                break
            for entry in range(starts[f], starts[f] + used[f]):
                slots[rows[entry]] = -1
                counts[entry] = 0
            used[f] = 0

    return Kernel(kernel)
