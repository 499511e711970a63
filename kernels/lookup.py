"""The lookup of a batch in a table of embeddings and a table of first-order weights."""

from __future__ import annotations

import torch
from torch import Tensor

from stampede.kernels.device import on_cpu, on_cuda


def lookup(
    table: Tensor,
    linear: Tensor | None,
    ids: Tensor,
    *,
    offsets: Tensor,
    out: Tensor | None = None,
    out_linear: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Look up a batch: row ``r = offsets[f] + ids[b, f]`` for field f.

    Parameters
    ----------
    table:
        ``[rows, d]``; ``rows * d`` may pass 2^31.
    linear:
        ``[rows, 1]``, the first-order weights; None for none.
    ids:
        int32 or int64 ``[B, F]``.
    offsets:
        int64 ``[F + 1]``: the first row of each field, and the rows of all.
    out, out_linear:
        Where the results go: ``[B, F, d]`` and ``[B]``, contiguous; new tensors without them.

    Returns
    -------
    tuple[Tensor, Tensor | None]
        ``table[r]``, ``[B, F, d]``, and the sum over f of ``linear[r]``, ``[B]``.

    Raises
    ------
    IndexError
        A field does not have an id (on a CPU; on CUDA such ids must not come here).
    """
    batch, fields = ids.shape
    if fields != len(offsets) - 1 or (linear is not None and linear.shape != (len(table), 1)):
        raise ValueError(f"ids [B, {len(offsets) - 1}] and first-order weights [{len(table)}, 1] are wanted")
    if ids.dtype not in (torch.int32, torch.int64) or offsets.dtype != torch.int64:
        raise TypeError(
            f"ids of int32 or int64 and offsets of int64 are wanted, not {ids.dtype}, {offsets.dtype}"
        )
    for result, shape in ((out, (batch, fields, table.shape[1])), (out_linear, (batch,))):
        if result is not None and (
            result.shape != shape or result.dtype != table.dtype or not result.is_contiguous()
        ):
            raise ValueError(
                f"the results go to contiguous {list(shape)} of {table.dtype}, not {result.shape}"
            )
    if out is None:
        out = table.new_empty(batch, fields, table.shape[1])
    if out_linear is None and linear is not None:
        out_linear = table.new_empty(batch)
    if on_cpu(table, *([] if linear is None else [linear])):
        from stampede.kernels.cpu.gather import gather

        gather(table, linear, ids.contiguous(), offsets=offsets, out=out, out_linear=out_linear)
    elif on_cuda(table):
        from stampede.kernels import cuda

        cuda.gather(table, linear, ids.contiguous(), offsets=offsets, out=out, out_linear=out_linear)
    else:
        rows = ids + offsets[:-1]  # [B, F]
        if not table.is_cuda and bool(((rows < offsets[:-1]) | (rows >= offsets[1:])).any()):
            raise IndexError("an id is outside its field's range")
        out.copy_(table[rows])
        if linear is not None and out_linear is not None:
            out_linear.copy_(linear[rows].sum((1, 2)))
    return out, out_linear
