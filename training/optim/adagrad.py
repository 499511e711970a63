"""Adagrad (Duchi et al. 2011), to compare with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from stampede.training.optim.tables import TableOptimizer, check_numbers


class Adagrad(TableOptimizer):
    """``s += g^2; w -= lr * g / (sqrt(s) + eps)``, with the L2, clips and updates of :class:`TableOptimizer`.

    Parameters
    ----------
    params, lr, l2, clip, clip_norm, ratio, zeta, update:
        See :class:`stampede.training.optim.tables.TableOptimizer`.
    initial:
        What s starts at.
    eps:
        The number beside the root.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-2,
        *,
        l2: float = 0.0,
        ratio: float = 1.0,
        zeta: float = 1e-5,
        initial: float = 0.1,
        eps: float = 1e-7,
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
            defaults={"initial": initial, "eps": eps},
        )

    def _check_group(self, group: Mapping[str, Any]) -> None:
        super()._check_group(group)
        check_numbers(group, at_least_0=("initial",), above_0=("eps",))

    def initial_tables(self, group: Mapping[str, Any]) -> dict[str, float]:
        """Give the sum of squares; see :meth:`TableOptimizer.initial_tables`."""
        return {"sum": group["initial"]}

    def _apply_rule(
        self, weights: Tensor, grads: Tensor, group: dict[str, Any], state: dict[str, Any]
    ) -> None:
        state["sum"].addcmul_(grads, grads)
        weights.addcdiv_(grads, state["sum"].sqrt().add_(group["eps"]), value=-float(group["lr"]))
