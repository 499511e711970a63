"""Helen: sharpness-aware steps whose reach follows an id's frequency (arXiv 2403.00798)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from stampede import ConfigError
from stampede.kernels import RowGradients
from stampede.training.embedding import field_sizes
from stampede.training.optim.tables import ADAM_MEANS, Kind, TableOptimizer, check_betas, check_numbers


class Helen(TableOptimizer):
    """Adam on gradients taken at a point moved uphill, frequent ids further than rare ones.

    A step takes two passes. From the gradients ``g`` of the first, L2 included, each field's table moves::

        w_i += rho * max(c_i / max_j c_j, bound) * g_i / (||g of the field|| + 1e-12)

    where c_i is how often id i occurs in the batch, 0 for absent ones. The second pass gives the gradients
    there; the weights go back and Adam (in torch's form: eps beside the corrected root) takes those. With
    ``perturb="all"`` the first-order and dense weights move too, by ``rho * g / (norm + 1e-12)``, where, as
    in the authors' program, the norm is that of the last field's gradient; else they are updated by the
    gradients of the first pass.

    Parameters
    ----------
    params, lr, l2:
        See :class:`stampede.training.optim.tables.TableOptimizer`. Every row is updated; nothing is clipped.
    rho:
        How far the tables move.
    bound:
        The least share of the way that a rare id goes.
    perturb:
        ``tables`` or ``all``.
    betas, eps:
        Of Adam.

    Raises
    ------
    stampede.ConfigError
        A value without meaning.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        *,
        l2: float = 0.0,
        rho: float = 0.05,
        bound: float = 0.3,
        perturb: str = "tables",
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        if perturb not in ("tables", "all"):
            raise ConfigError(f"unknown perturb {perturb!r}: choose one of tables, all")
        self._perturbs_all = perturb == "all"
        own = {"rho": rho, "bound": bound, "betas": betas, "eps": eps}
        super().__init__(params, lr, l2=l2, defaults=own)

    def _check_group(self, group: Mapping[str, Any]) -> None:
        super()._check_group(group)
        check_numbers(group, at_least_0=("rho",), above_0=("eps",))
        check_betas(group)
        if not 0 <= group["bound"] <= 1:
            raise ConfigError(f"bound must be a number in [0, 1], not {group['bound']}")
        if group["update"] != "dense":
            raise ConfigError("Helen updates every row: update must be dense")

    @torch.no_grad()
    def step(
        self,
        closure: Callable[[], Any] | None = None,
        *,
        counts: Mapping[Tensor, Tensor] | None = None,
        gradients: Mapping[Tensor, RowGradients] | None = None,
    ) -> Any:
        """Take a step of two passes; see :meth:`TableOptimizer.step`.

        Parameters
        ----------
        closure:
            Zeroes the gradients, computes them anew at the weights as they are, and returns the loss. It is
            called twice; the loss of the first pass is returned.

        Raises
        ------
        stampede.ConfigError
            There is no closure, or the counts of a table are not known.
        """
        if closure is None:
            raise ConfigError("Helen takes two passes a step: call step(closure)")
        gradients = gradients if gradients is not None else {}
        with torch.enable_grad():
            loss = closure()
        first = self._whole_gradients(gradients)
        found = self._find_counts(counts or {}, gradients)
        before = {parameter: parameter.clone() for parameter in first}
        self._move(first, {p: self._counts_of(p, found, gradients) for p in self._tables(first)})
        try:
            with torch.enable_grad():
                closure()
            second = self._whole_gradients(gradients)
        finally:  # also where the second pass is interrupted
            for parameter, weights in before.items():
                parameter.copy_(weights)
        for group in self.param_groups:
            moved = group["kind"] == Kind.EMBEDDING or self._perturbs_all
            for parameter in group["params"]:
                grads = (second if moved else first).get(parameter)
                if grads is not None:
                    self._prepare(parameter, group, self.state[parameter])
                    self._apply_rule(parameter, grads, group, self.state[parameter])
        return loss

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_perturbs_all": self._perturbs_all}

    def _tables(self, grads: Mapping[Tensor, Tensor]) -> list[Tensor]:
        groups = [group for group in self.param_groups if group["kind"] == Kind.EMBEDDING]
        return [parameter for group in groups for parameter in group["params"] if parameter in grads]

    def _whole_gradients(self, gradients: Mapping[Tensor, RowGradients]) -> dict[Tensor, Tensor]:
        """Give the gradients of all parameters that have one, L2 included, as copies."""
        return {
            parameter: self.rows_to_update(parameter, group, gradient, None).grads.clone()
            for group in self.param_groups
            for parameter in group["params"]
            if (gradient := gradients.get(parameter, parameter.grad)) is not None
        }

    def _counts_of(
        self, parameter: Tensor, found: Mapping[Tensor, Tensor], gradients: Mapping[Tensor, RowGradients]
    ) -> Tensor:
        if parameter in gradients:
            return gradients[parameter].index.dense_counts()
        return found[parameter]

    def _move(self, grads: Mapping[Tensor, Tensor], counts: Mapping[Tensor, Tensor]) -> None:
        """Move the weights to where the second pass is taken."""
        norm = torch.zeros(())
        for group in self.param_groups:
            if group["kind"] != Kind.EMBEDDING:
                continue
            for table in group["params"]:
                if table not in grads:
                    continue
                sizes = list(group["sizes"] or field_sizes(table))
                parts = (torch.split(tensor, sizes) for tensor in (table, grads[table], counts[table]))
                for weights, gradient, count in zip(*parts, strict=True):
                    norm = torch.linalg.vector_norm(gradient)
                    most = count.max().clamp(min=1)
                    share = (count.to(gradient.dtype) / most).clamp(min=group["bound"])
                    weights.add_(gradient * share.unsqueeze(1) * (group["rho"] / (norm + 1e-12)))
        if not self._perturbs_all:
            return
        for group in self.param_groups:
            if group["kind"] != Kind.EMBEDDING:
                for parameter in group["params"]:
                    if parameter in grads:
                        parameter.add_(grads[parameter] * (group["rho"] / (norm + 1e-12)))

    def _wants_counts(self, group: Mapping[str, Any]) -> bool:
        return bool(group["kind"] == Kind.EMBEDDING)

    def initial_tables(self, group: Mapping[str, Any]) -> dict[str, float]:
        """Give Adam's means; see :meth:`TableOptimizer.initial_tables`."""
        return dict.fromkeys(ADAM_MEANS, 0.0)

    def _apply_rule(
        self, weights: Tensor, grads: Tensor, group: dict[str, Any], state: dict[str, Any]
    ) -> None:
        beta1, beta2 = group["betas"]
        step = int(state["step"])
        state["exp_avg"].lerp_(grads, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(grads, grads, value=1 - beta2)
        root = state["exp_avg_sq"].sqrt().div_((1 - beta2**step) ** 0.5).add_(group["eps"])
        weights.addcdiv_(state["exp_avg"], root, value=-float(group["lr"]) / (1 - beta1**step))
