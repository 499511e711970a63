"""What is minimised: mean binary cross-entropy, plus the L2 of the optimizer's groups, reported apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_BLOCK_VALUES = 1 << 22


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean binary cross-entropy of a batch, from the logits.

    ``mean of max(z, 0) - z * y + log(1 + exp(-|z|))``: exact for logits of any size, where a form in
    probabilities saturates. An empty batch has the loss 0, and gives zero gradients.

    Parameters
    ----------
    logits:
        ``[B]``, floating; half precision is widened to float32.
    labels:
        ``[B]``, 0 or 1 of any dtype.

    Returns
    -------
    Tensor
        0-dimensional.

    Raises
    ------
    ValueError
        The shapes differ (``[B, 1]`` against ``[B]`` would silently average B x B terms).
    """
    if logits.shape != labels.shape:
        raise ValueError(f"logits {list(logits.shape)} and labels {list(labels.shape)} differ in shape")
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    total = functional.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="sum")
    return total / max(logits.numel(), 1)


@torch.no_grad()
def regulariser(groups: Iterable[Mapping[str, Any]]) -> Tensor:
    """Sum ``l2 * sum(w^2)`` over an optimizer's parameter groups.

    The optimizer adds its gradient (``2 * l2 * w``) itself, so this is for the log alone: it reads every
    table once.

    Parameters
    ----------
    groups:
        ``optimizer.param_groups`` of :class:`stampede.training.optim.CowClip`.

    Returns
    -------
    Tensor
        float64, 0-dimensional.
    """
    total = torch.zeros((), dtype=torch.float64)
    for group in groups:
        if group["l2"] == 0:
            continue
        for parameter in group["params"]:
            total = total.to(parameter.device)
            for block in (
                parameter.detach().reshape(-1).split(_BLOCK_VALUES)
            ):  # float64 copies of a block, not of all
                total = total + group["l2"] * block.to(torch.float64).square().sum()
    return total
