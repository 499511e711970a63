"""Adam in the form of Keras, with adaptive column-wise clipping of embedding tables (arXiv 2204.06240)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

from stampede import ConfigError
from stampede.kernels import adam_, add_l2, cowclip_adam_
from stampede.training.embedding import batch_counts

KINDS = ("embedding", "first_order", "dense")
CLIPS = ("cowclip", "none")


class CowClip(Optimizer):
    """Adam whose embedding gradients are clipped row by row, by how often each id occurs in the batch.

    Per step and parameter, on *every* row, absent ones too::

        g = grad + 2 * l2 * w
        g_i = g_i * min(1, threshold_i / ||g_i||)                    groups with clip="cowclip"
        threshold_i = ratio * c_i * max(||w_i||, ratio * sqrt(d) * zeta)
        Adam: w -= lr * sqrt(1-b2^t)/(1-b1^t) * m / (sqrt(v) + eps)

    The loss to differentiate is the cross-entropy alone; the L2 term is added here, before the clip. Counts
    come from :class:`stampede.training.embedding.FusedEmbedding`, or from ``step(counts=...)`` for any
    other table. ``.grad`` is left as it was. A parameter without a gradient is skipped, as in torch.

    Parameters
    ----------
    params:
        Parameters, or groups: dicts with ``params`` and, where they differ from the arguments below,
        ``kind`` (``embedding``: a table of vectors; ``first_order``: a table of single weights, never
        clipped; ``dense``: any other weight), ``lr``, ``l2``, ``clip`` (``cowclip`` or ``none``),
        ``ratio``, ``zeta``, ``betas``, ``eps``. Without a ``kind`` a group is ``dense``.
    lr:
        Learning rate.
    l2:
        Strength of ``l2 * sum(w^2)``.
    ratio:
        r of the clip.
    zeta:
        Floor of the clip, per value of a row.
    betas, eps:
        Of Adam; eps stands beside the uncorrected root.
    clip:
        For groups of kind ``embedding`` that do not say it themselves. With ``none`` everywhere this is Adam.

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
    ) -> None:
        if clip not in CLIPS:
            raise ConfigError(f"unknown clip {clip!r}: choose one of {', '.join(CLIPS)}")
        self._embedding_clip = clip
        self._clipped: dict[Tensor, Tensor] = {}
        defaults = {
            "kind": "dense",
            "lr": lr,
            "l2": l2,
            "ratio": ratio,
            "zeta": zeta,
            "betas": betas,
            "eps": eps,
        }
        super().__init__(params, defaults)
        if clip != "none" and not any(group["clip"] == "cowclip" for group in self.param_groups):
            raise ConfigError(
                "CowClip has nothing to clip: give the embedding tables as a group with kind='embedding' "
                "(CTRModel.parameter_groups does), or pass clip='none' to run Adam alone"
            )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; see the class for its keys."""
        kind = param_group.get("kind", "dense")
        param_group.setdefault("clip", self._embedding_clip if kind == "embedding" else "none")
        _check_group({**self.defaults, **param_group})
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        if group["kind"] != "dense" and any(parameter.dim() != 2 for parameter in group["params"]):
            self.param_groups.pop()
            raise ConfigError(f"a group of kind {group['kind']!r} holds tables [rows, d] only")

    @overload
    def step(self, closure: None = None, *, counts: Mapping[Tensor, Tensor] | None = None) -> None: ...

    @overload
    def step(
        self, closure: Callable[[], float], *, counts: Mapping[Tensor, Tensor] | None = None
    ) -> float: ...

    @torch.no_grad()
    def step(
        self,
        closure: Callable[[], float] | None = None,
        *,
        counts: Mapping[Tensor, Tensor] | None = None,
    ) -> float | None:
        """Update every parameter that has a gradient.

        Parameters
        ----------
        closure:
            Computes the gradients anew and returns the loss.
        counts:
            For tables that are not in a FusedEmbedding: parameter -> integers ``[rows]``, how often each row
            occurs in the batch (``stampede.kernels.count_rows(ids, rows)``). Goes before a recorded count.

        Returns
        -------
        float | None
            What the closure returned.

        Raises
        ------
        stampede.ConfigError
            A table is to be clipped and its counts are not known, or ``counts`` do not fit the tables.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        found = self._find_counts(counts or {})  # before any update, so that an error changes nothing
        self._clipped = {}
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group, found.get(parameter))
        return loss

    def clipped_share(self) -> float | None:
        """Give the share of rows that the last step clipped, of all rows of the tables it clips.

        None before the first step or where nothing is clipped. The numbers stay on their device until asked
        for.
        """
        rows = sum(table.shape[0] for table in self._clipped)
        if rows == 0:
            return None
        return sum(int(number) for number in self._clipped.values()) / rows

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_embedding_clip": self._embedding_clip}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._clipped = {}

    def _find_counts(self, given: Mapping[Tensor, Tensor]) -> dict[Tensor, Tensor]:
        """Find the counts of every table that this step clips."""
        wanted = [
            (index, parameter)
            for group in self.param_groups
            if group["clip"] == "cowclip"
            for index, parameter in enumerate(group["params"])
        ]
        tables = {parameter for _, parameter in wanted}
        if any(parameter not in tables for parameter in given):
            raise ConfigError("step(counts=...) names a parameter that this optimizer does not clip")
        found: dict[Tensor, Tensor] = {}
        for index, parameter in wanted:
            if parameter.grad is None:
                continue
            counts = given.get(parameter, batch_counts(parameter))
            shape = list(parameter.shape)
            if counts is None:
                raise ConfigError(
                    f"the batch counts of embedding table {index} {shape} are not known: use "
                    "stampede.training.embedding.FusedEmbedding, or pass step(counts={table: "
                    "stampede.kernels.count_rows(ids, rows)}), or set the group's clip to 'none'"
                )
            if counts.shape != parameter.shape[:1] or counts.is_floating_point():
                raise ConfigError(
                    f"counts of embedding table {index} {shape} must be {shape[0]} integers, "
                    f"not {list(counts.shape)} of {counts.dtype}"
                )
            found[parameter] = counts.to(parameter.device)
        return found

    def _update(self, parameter: Tensor, group: dict[str, Any], counts: Tensor | None) -> None:
        gradient = parameter.grad
        assert gradient is not None
        if gradient.is_sparse:
            gradient = gradient.coalesce().to_dense()  # every row is updated, so a sparse form saves nothing
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.int64)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        adam = {
            "exp_avg": state["exp_avg"],
            "exp_avg_sq": state["exp_avg_sq"],
            "learning_rate": float(group["lr"]),
            "step": int(state["step"]),
            "betas": tuple(group["betas"]),
            "eps": group["eps"],
        }
        if counts is None:
            adam_(parameter, add_l2(gradient, parameter, l2=group["l2"]), **adam)
            return
        self._clipped[parameter] = cowclip_adam_(
            parameter,
            gradient,
            counts=counts,
            l2=group["l2"],
            ratio=group["ratio"],
            zeta=group["zeta"],
            **adam,
        )


def _check_group(group: Mapping[str, Any]) -> None:
    """Raise for a value without meaning."""
    if group["kind"] not in KINDS:
        raise ConfigError(f"unknown kind {group['kind']!r}: choose one of {', '.join(KINDS)}")
    if group["clip"] not in CLIPS:
        raise ConfigError(f"unknown clip {group['clip']!r}: choose one of {', '.join(CLIPS)}")
    if group["clip"] == "cowclip" and group["kind"] != "embedding":
        raise ConfigError(f"only groups of kind 'embedding' are clipped, not {group['kind']!r}")
    for name in ("lr", "l2", "zeta"):
        if not (group[name] >= 0 and math.isfinite(group[name])):
            raise ConfigError(f"{name} must be a number of 0 or more, not {group[name]}")
    for name in ("ratio", "eps"):
        if not (group[name] > 0 and math.isfinite(group[name])):
            raise ConfigError(f"{name} must be a number above 0, not {group[name]}")
    betas = tuple(group["betas"])
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise ConfigError(f"betas must be two numbers in [0, 1), not {group['betas']}")
