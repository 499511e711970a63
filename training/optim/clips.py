"""How the gradient of an embedding table is bounded: CowClip, and the clips to compare it with."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from stampede.kernels import clip_all, clip_columns, clip_fields, clip_rows, field_norms
from stampede.training.embedding import field_sizes


class Clip(StrEnum):
    """How the gradient of an embedding table, its L2 term included, is bounded.

    ``cowclip`` and ``adaptive-field`` bound by the weights' own norm (``ratio``, ``zeta``), the others by the
    constant ``clip_norm``.
    """

    NONE = "none"
    GLOBAL = "global"  # all tables together
    FIELD = "field"  # each field's table
    COLUMN = "column"  # each row
    ADAPTIVE_FIELD = (
        "adaptive-field"  # each field's table, by ratio * max(||w_f||, ratio * sqrt(values) * zeta)
    )
    COWCLIP = "cowclip"  # each row, by its own norm and its count


CLIP_NORM_CLIPS = (Clip.GLOBAL, Clip.FIELD, Clip.COLUMN)


def clip_table(
    grads: Tensor,
    weights: Tensor,
    *,
    table: Tensor,
    rows: Tensor | None,
    counts: Tensor | None,
    group: Mapping[str, Any],
    global_norm: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Clip the gradient of a table, or of some of its rows, by plain torch.

    Parameters
    ----------
    grads, weights:
        ``[n, d]``: the whole gradient of the rows that are updated, and their weights.
    table:
        ``[num_rows, d]``, all of it.
    rows:
        int64 ``[n]``: which rows; None for all.
    counts:
        Integers ``[num_rows]``: how often each row occurs in the batch; for ``cowclip`` alone.
    group:
        Of the optimizer: ``clip``, ``clip_norm``, ``ratio``, ``zeta``, ``sizes``.
    global_norm:
        The norm of the gradients of all tables together; for ``global`` alone.

    Returns
    -------
    tuple[Tensor, Tensor]
        The clipped gradient ``[n, d]``, and bool ``[n]``: which rows were clipped.
    """
    clip = group["clip"]
    if clip == Clip.COWCLIP:
        assert counts is not None
        counts = counts if rows is None else counts[rows]
        return clip_rows(grads, weights, counts=counts, ratio=group["ratio"], zeta=group["zeta"])
    if clip == Clip.COLUMN:
        return clip_columns(grads, limit=group["clip_norm"])
    if clip == Clip.GLOBAL:
        assert global_norm is not None
        return clip_all(grads, norm=global_norm, limit=group["clip_norm"])
    sizes = torch.tensor(group["sizes"] or field_sizes(table), device=table.device)
    fields = torch.arange(len(sizes), device=table.device).repeat_interleave(sizes)  # [num_rows]
    if clip == Clip.ADAPTIVE_FIELD:
        norms = field_norms(table.detach(), fields=fields, num_fields=len(sizes))  # [F]
        values = sizes.to(norms.dtype) * table.shape[1]
        ratio = group["ratio"]
        limits = ratio * torch.maximum(norms, ratio * values.sqrt() * group["zeta"])
    else:
        limits = torch.full((len(sizes),), group["clip_norm"], dtype=grads.dtype, device=table.device)
    return clip_fields(grads, fields=fields if rows is None else fields[rows], limits=limits)
