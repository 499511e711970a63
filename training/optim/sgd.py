"""Plain stochastic gradient descent, to compare with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from stampede.training.optim.tables import TableOptimizer


class SGD(TableOptimizer):
    """``w -= lr * g``, with the L2, clips and updates of :class:`TableOptimizer`.

    Parameters
    ----------
    params, lr, l2, clip, clip_norm, ratio, zeta, update:
        See :class:`stampede.training.optim.tables.TableOptimizer`.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-2,
        *,
        l2: float = 0.0,
        ratio: float = 1.0,
        zeta: float = 1e-5,
        clip: str = "none",
        clip_norm: float | None = None,
        update: str = "dense",
    ) -> None:
        super().__init__(
            params,
            lr,
            l2=l2,
            clip=clip,
            clip_norm=clip_norm,
            ratio=ratio,
            zeta=zeta,
            update=update,
            defaults={},
        )

    def _prepare(self, parameter: Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
        if not state:
            state["step"] = torch.zeros((), dtype=torch.int64)
        state["step"] += 1

    def _apply_rule(
        self, weights: Tensor, grads: Tensor, group: dict[str, Any], state: dict[str, Any]
    ) -> None:
        weights.sub_(grads, alpha=float(group["lr"]))
