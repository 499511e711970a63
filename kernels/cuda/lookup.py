"""The lookup of a batch in the fused tables."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from stampede.kernels.cuda.lanes import Lanes, check_values
from stampede.kernels.cuda.launch import Kernel, launch

_ROWS = Kernel("lookup", "gather_rows")
_LINEAR = Kernel("lookup", "gather_linear")
_UNROLL = 4  # rows a group takes
_WARP = 32


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

    ``r = offsets[f] + ids[b, f]``. Nothing checks that a row is in the table.

    Parameters
    ----------
    table, linear:
        float32 ``[num_rows, d]`` and ``[num_rows, 1]``, contiguous; ``num_rows * d`` may pass 2^31.
    ids:
        int32 ``[B, F]``, contiguous; int64 is converted first. B * F is below 2^31.
    offsets:
        int64 ``[F]`` or longer.
    out, out_linear:
        float32 ``[B, F, d]`` and ``[B]``, contiguous; written.
    """
    batch, fields = ids.shape
    if batch * fields >= 2**31:
        raise ValueError(f"a batch of {batch} rows with {fields} fields has 2^31 ids or more")
    dim = table.shape[1]
    lanes = Lanes.of(dim, table, out)
    ids = ids.to(torch.int32)
    launch(
        _ROWS,
        *(table, ids, offsets, out, np.int32(batch * fields), np.int32(fields), np.int32(dim)),
        *lanes.arguments,
        blocks=lanes.blocks(batch * fields, threads=_ROWS.threads, unroll=_UNROLL),
        device=table.device,
    )
    if linear is None or out_linear is None:
        return
    check_values(linear, out_linear)
    launch(
        _LINEAR,
        *(linear, ids, offsets, out_linear, np.int32(batch), np.int32(fields)),
        blocks=-(-batch // (_LINEAR.threads // _WARP)),
        device=table.device,
    )
