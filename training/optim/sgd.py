"""Plain stochastic gradient descent, to compare with."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from stampede.training.optim.tables import TableOptimizer


class SGD(TableOptimizer):
    """``w -= lr * g``, with the L2, clips and updates of :class:`TableOptimizer`.

    Parameters
    ----------
    params, lr, l2, clip, clip_norm, ratio, zeta, update:
        See :class:`stampede.training.optim.tables.TableOptimizer`.
    """

    def _apply_rule(
        self, weights: Tensor, grads: Tensor, group: dict[str, Any], state: dict[str, Any]
    ) -> None:
        weights.sub_(grads, alpha=float(group["lr"]))
