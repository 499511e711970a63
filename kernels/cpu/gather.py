"""The lookup of a batch in the fused tables."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from stampede.kernels.cpu.team import TASKS, TYPES, Kernel, array_at, next_task, prefetch

_AHEAD = 24  # occurrences between the request of a row and its use
NONE_BAD = -1

_BATCH_ROWS = 128  # a task's rows of the batch: 26 fields x 10 values of float32 make 130 KB
_int64 = TYPES[torch.int64]


def gather(
    table: Tensor,
    linear: Tensor | None,
    ids: Tensor,
    *,
    offsets: Tensor,
    out: Tensor,
    out_linear: Tensor | None,
) -> None:
    """Look up a batch: ``out[b, f] = table[r]`` and ``out_linear[b] = sum over f of linear[r]``.

    ``r = offsets[f] + ids[b, f]``; a row's first-order weights are added up in the order of the fields.

    Parameters
    ----------
    table, linear:
        ``[num_rows, d]`` and ``[num_rows, 1]``, contiguous, of one dtype, float32 or float64.
    ids:
        int32 or int64 ``[B, F]``, contiguous.
    offsets:
        int64 ``[F + 1]``: the first row of each field, and the rows of all.
    out, out_linear:
        ``[B, F, d]`` and ``[B]``, contiguous, of the table's dtype; written.

    Raises
    ------
    IndexError
        A field does not have an id; what was written by then is undefined.
    """
    batch, fields = ids.shape
    bad = torch.full((1,), NONE_BAD)
    nothing = table[:0]
    _kernel(table.dtype, ids.dtype)(
        -(-batch // _BATCH_ROWS),
        *(batch, fields, table.shape[1], table.shape[0], linear is not None),
        *(offsets, bad, ids, table, nothing if linear is None else linear),
        *(out, nothing if out_linear is None else out_linear),
    )
    raise_if_bad(bad, ids, offsets)


def raise_if_bad(bad: Tensor, ids: Tensor, offsets: Tensor) -> None:
    """Raise :class:`IndexError` for the place ``b * F + f`` of an id that its field does not have."""
    place = int(bad)
    if place != NONE_BAD:
        row, field = divmod(place, ids.shape[1])
        size = int(offsets[field + 1] - offsets[field])
        raise IndexError(
            f"id {int(ids[row, field])} of field {field}, row {row} of the batch, is outside [0, {size})"
        )


@cache
def _kernel(value_dtype: torch.dtype, id_dtype: torch.dtype) -> Kernel:
    value, integer, size = TYPES[value_dtype], TYPES[id_dtype], value_dtype.itemsize

    def kernel(a: Any) -> None:
        batch, fields, dim, num_rows, has_linear = a[2], a[3], a[4], a[5], a[6]
        offsets = array_at(a[7], fields + 1, _int64)
        bad = array_at(a[8], 1, _int64)
        ids = array_at(a[9], batch * fields, integer)
        table = array_at(a[10], num_rows * dim, value)
        linear = array_at(a[11], num_rows * has_linear, value)
        out = array_at(a[12], batch * fields * dim, value)
        out_linear = array_at(a[13], batch * has_linear, value)
        while True:
            task = next_task(a)
            if task >= a[TASKS]:
                break
            for b in range(task * _BATCH_ROWS, min(batch, (task + 1) * _BATCH_ROWS)):
                total = value(0)
                for f in range(fields):
                    place = b * fields + f
                    if place + _AHEAD < batch * fields:  # the row of an occurrence is a random access
                        soon = ids[place + _AHEAD] + offsets[(f + _AHEAD) % fields]
                        prefetch(a[10] + soon * dim * size)
                        prefetch(a[10] + ((soon + 1) * dim - 1) * size)
                        if has_linear:
                            prefetch(a[11] + soon * size)
                    row = ids[place] + offsets[f]  # of an enormous id it may be any row
                    below = min(offsets[f + 1], num_rows) - offsets[f]
                    if ids[place] < 0 or ids[place] >= below:
                        bad[0] = place
                        row = 0
                    source = table[row * dim : (row + 1) * dim]
                    target = out[place * dim : (place + 1) * dim]
                    for k in range(dim):
                        target[k] = source[k]
                    if has_linear:
                        total += linear[row]
                if has_linear:
                    out_linear[b] = total

    return Kernel(kernel)
