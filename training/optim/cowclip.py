"""Adam in the form of Keras, with adaptive column-wise clipping of embedding tables (arXiv 2204.06240)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from stampede.kernels import (
    RowGradients,
    apply_adam_,
    corrected_rate,
    update_entries,
    update_table,
    update_values,
)
from stampede.training.optim.clips import Clip
from stampede.training.optim.tables import (
    ADAM_MEANS,
    Gradient,
    Kind,
    TableOptimizer,
    Update,
    check_betas,
    check_numbers,
    compact,
)


class CowClip(TableOptimizer):
    """Adam whose embedding gradients are clipped row by row, by how often each id occurs in the batch.

    Per step and parameter, on *every* row, absent ones too::

        g = grad + 2 * l2 * w
        g_i = g_i * min(1, threshold_i / ||g_i||)                    groups with clip="cowclip"
        threshold_i = ratio * c_i * max(||w_i||, ratio * sqrt(d) * zeta)
        Adam: w -= lr * sqrt(1-b2^t)/(1-b1^t) * m / (sqrt(v) + eps)

    With ``update="touched"`` only the rows of the batch are updated, L2 included: another algorithm than the
    paper's. With another ``clip`` it is Adam with that one; with ``none``, Adam alone.

    Parameters
    ----------
    params, lr, l2, clip, clip_norm, ratio, zeta, update:
        See :class:`stampede.training.optim.tables.TableOptimizer`.
    betas, eps:
        Of Adam; eps stands beside the uncorrected root.

    Raises
    ------
    stampede.ConfigError
        A value without meaning, or nothing to clip although ``clip`` is not ``none``.

    Example
    -------
    >>> from stampede.training.embedding import FusedEmbedding
    >>> embedding, head = FusedEmbedding([10, 20], 4), torch.nn.Linear(8, 1)
    >>> optimizer = CowClip(
    ...     [
    ...         {"params": embedding.parameters(), "kind": "embedding", "lr": 1e-4, "l2": 1e-5},
    ...         {"params": head.parameters(), "kind": "dense", "lr": 8e-4},
    ...     ]
    ... )
    >>> loss = head(embedding(torch.tensor([[1, 2], [1, 3]])).flatten(1)).square().mean()
    >>> loss.backward()
    >>> optimizer.step()
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-4,
        *,
        l2: float = 0.0,
        ratio: float = 1.0,
        zeta: float = 1e-5,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-7,
        clip: str = "cowclip",
        clip_norm: float | None = None,
        update: str = "dense",
    ) -> None:
        self._rates: dict[Tensor, float | Tensor] = {}
        super().__init__(
            params,
            lr,
            l2=l2,
            clip=clip,
            clip_norm=clip_norm,
            ratio=ratio,
            zeta=zeta,
            update=update,
            defaults={"betas": betas, "eps": eps},
        )

    def _check_group(self, group: Mapping[str, Any]) -> None:
        super()._check_group(group)
        check_numbers(group, above_0=("eps",))
        check_betas(group)

    def initial_tables(self, group: Mapping[str, Any]) -> dict[str, float]:
        """Give Adam's means; see :meth:`TableOptimizer.initial_tables`."""
        return dict.fromkeys(ADAM_MEANS, 0.0)

    def _prepare(self, parameter: Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
        super()._prepare(parameter, group, state)
        rate = corrected_rate(float(group["lr"]), step=int(state["step"]), betas=tuple(group["betas"]))
        if not parameter.is_cuda:
            self._rates[parameter] = rate
            return
        # on CUDA the rate is a scalar in place, which the kernels of a captured graph read at every replay
        held = self._rates.get(parameter)
        if not isinstance(held, Tensor):
            held = self._rates[parameter] = torch.empty((), dtype=torch.float32, device=parameter.device)
        held.fill_(rate)

    def _update(
        self, parameter: Tensor, group: dict[str, Any], gradient: Gradient, counts: Tensor | None
    ) -> None:
        state = self.state[parameter]
        clips = group["clip"] == Clip.COWCLIP
        adam: dict[str, Any] = {
            "exp_avg": state["exp_avg"],
            "exp_avg_sq": state["exp_avg_sq"],
            "rate": self._rates[parameter],
            "l2": group["l2"],
            "betas": tuple(group["betas"]),
            "eps": group["eps"],
        }
        if not clips and group["clip"] != Clip.NONE:
            super()._update(parameter, group, gradient, counts)
            return
        if isinstance(gradient, Tensor) and gradient.is_sparse:
            gradient = gradient.coalesce().to_dense() if group["update"] == Update.DENSE else gradient
        clip = (group["ratio"], group["zeta"]) if clips else None
        if group["update"] == Update.TOUCHED:
            clipped = update_entries(parameter, compact(gradient, counts), clip=clip, **adam)
        elif group["kind"] == Kind.DENSE or not (clips or isinstance(gradient, RowGradients)):
            assert isinstance(gradient, Tensor)
            update_values(parameter, gradient, **adam)
            return
        else:
            clipped = update_table(parameter, gradient, counts=counts, clip=clip, **adam)
        if clips:
            self.clipped[parameter] = (clipped, parameter.shape[0])

    def _apply_rule(
        self, weights: Tensor, grads: Tensor, group: dict[str, Any], state: dict[str, Any]
    ) -> None:
        apply_adam_(
            weights,
            grads,
            exp_avg=state["exp_avg"],
            exp_avg_sq=state["exp_avg_sq"],
            rate=corrected_rate(float(group["lr"]), step=int(state["step"]), betas=tuple(group["betas"])),
            betas=tuple(group["betas"]),
            eps=group["eps"],
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._rates = {}
