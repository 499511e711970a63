"""What the optimizers of embedding tables share: groups, counts, L2, clips, and which rows are updated."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar, overload

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.profiler import record_function

from stampede import ConfigError
from stampede.kernels import RowGradients, RowIndex, add_l2, empty
from stampede.training.embedding import batch_counts
from stampede.training.optim.clips import CLIP_NORM_CLIPS, Clip, clip_table


class Kind(StrEnum):
    """What the parameters of a group are."""

    EMBEDDING = "embedding"  # tables of vectors, [rows, d]
    FIRST_ORDER = "first_order"  # tables of single weights, [rows, 1]; never clipped
    DENSE = "dense"


class Update(StrEnum):
    """Which rows of a table a step updates."""

    DENSE = "dense"  # every row: the paper's
    TOUCHED = "touched"  # those of the batch alone, L2 included: another algorithm, what "sparse Adam" does


ADAM_MEANS = ("exp_avg", "exp_avg_sq")
"""Names of the tables that Adam keeps, as torch has them."""

Gradient = RowGradients | Tensor

_Member = TypeVar("_Member", bound=StrEnum)


@dataclass
class Rows:
    """The rows of a parameter that a step updates: their weights and whole gradient.

    ``rows`` is None for all of them, and ``weights`` the parameter itself then; else ``weights`` is a copy.
    """

    rows: Tensor | None
    weights: Tensor
    grads: Tensor


class TableOptimizer(Optimizer):
    """An optimizer that knows tables from dense weights, adds L2 itself, clips, and updates every row.

    The loss to differentiate is the cross-entropy alone: ``2 * l2 * w`` is added here, before the clip.
    Counts come from :class:`stampede.training.embedding.FusedEmbedding`, or from ``step(counts=...)`` for any
    other table. ``.grad`` is left as it was. A parameter without a gradient is skipped, as in torch.

    Parameters
    ----------
    params:
        Parameters, or groups: dicts with ``params`` and, where they differ from the arguments below,
        ``kind`` (of :class:`Kind`; ``dense`` without one), ``lr``, ``l2``, ``clip``, ``clip_norm``,
        ``ratio``, ``zeta``, ``update``, and ``sizes``: the rows of each field, where a table holds several
        and is not a FusedEmbedding's, which are known.
    lr:
        Learning rate.
    l2:
        Strength of ``l2 * sum(w^2)``.
    clip:
        Of :class:`Clip`, for groups of kind ``embedding`` that do not say it themselves.
    clip_norm:
        The limit of the clips ``global``, ``field`` and ``column``.
    ratio, zeta:
        r and zeta of the clips ``cowclip`` and ``adaptive-field``.
    update:
        Of :class:`Update`, for tables.
    defaults:
        Defaults of what the rule of a subclass takes from its groups.

    Raises
    ------
    stampede.ConfigError
        A value without meaning, or nothing to clip although ``clip`` is not ``none``.
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
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        self._embedding_clip = _member(Clip, clip, "clip")
        self._global_norm: Tensor | None = None
        self.clipped: dict[Tensor, tuple[Tensor, int]] = {}  # table -> rows that the last step clipped, rows
        shared = {
            "kind": Kind.DENSE,
            "lr": lr,
            "l2": l2,
            "clip_norm": clip_norm,
            "ratio": ratio,
            "zeta": zeta,
            "update": update,
            "sizes": None,
        }
        super().__init__(params, {**shared, **(defaults or {})})
        if clip_norm is not None and self._embedding_clip not in CLIP_NORM_CLIPS:
            raise ConfigError(f"clip_norm is of the clips {', '.join(CLIP_NORM_CLIPS)}, not of {clip}")
        if self._embedding_clip != Clip.NONE and all(g["clip"] == Clip.NONE for g in self.param_groups):
            raise ConfigError(
                f"{type(self).__name__} has nothing to clip: give the embedding tables as a group with "
                "kind='embedding' (CTRModel.parameter_groups does), or pass clip='none'"
            )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; see the class for its keys."""
        group = {**self.defaults, **param_group}
        kind = _member(Kind, group["kind"], "kind")
        clip = self._embedding_clip if kind == Kind.EMBEDDING else Clip.NONE
        clip = _member(Clip, param_group.get("clip", clip), "clip")
        update = _member(Update, group["update"], "update") if kind != Kind.DENSE else Update.DENSE
        chosen = {"kind": kind, "clip": clip, "update": update}
        self._check_group({**group, **chosen})
        super().add_param_group({**param_group, **{name: str(value) for name, value in chosen.items()}})
        group = self.param_groups[-1]
        if kind == Kind.DENSE:
            return
        sizes = group["sizes"]
        for parameter in group["params"]:
            if parameter.dtype == torch.float16:
                self.param_groups.pop()
                raise ConfigError("a table of float16 loses small gradients: take float32 or bfloat16")
            if parameter.dim() != 2:
                self.param_groups.pop()
                raise ConfigError(f"a group of kind {kind.value!r} holds tables [rows, d] only")
            if sizes is not None and sum(sizes) != parameter.shape[0]:
                self.param_groups.pop()
                raise ConfigError(f"sizes of {sum(sizes)} rows do not fit a table of {parameter.shape[0]}")

    def _check_group(self, group: Mapping[str, Any]) -> None:
        """Raise :class:`ConfigError` for a value without meaning; a subclass adds its own."""
        if group["clip"] != Clip.NONE and group["kind"] != Kind.EMBEDDING:
            raise ConfigError(f"only groups of kind 'embedding' are clipped, not {group['kind'].value!r}")
        if group["clip"] in CLIP_NORM_CLIPS and group["clip_norm"] is None:
            raise ConfigError(f"clip {group['clip'].value!r} needs a clip_norm: the largest norm to let pass")
        check_numbers(group, at_least_0=("lr", "l2", "zeta"), above_0=("ratio",))
        if group["clip_norm"] is not None:
            check_numbers(group, above_0=("clip_norm",))

    @overload
    def step(
        self,
        closure: None = None,
        *,
        counts: Mapping[Tensor, Tensor] | None = None,
        gradients: Mapping[Tensor, RowGradients] | None = None,
    ) -> None: ...

    @overload
    def step(
        self,
        closure: Callable[[], Any],
        *,
        counts: Mapping[Tensor, Tensor] | None = None,
        gradients: Mapping[Tensor, RowGradients] | None = None,
    ) -> Any: ...

    @torch.no_grad()
    def step(
        self,
        closure: Callable[[], Any] | None = None,
        *,
        counts: Mapping[Tensor, Tensor] | None = None,
        gradients: Mapping[Tensor, RowGradients] | None = None,
    ) -> Any:
        """Update every parameter that has a gradient.

        Parameters
        ----------
        closure:
            Computes the gradients anew and returns the loss.
        counts:
            For tables that are not in a FusedEmbedding: parameter -> integers ``[rows]``, how often each row
            occurs in the batch (``stampede.kernels.count_rows(ids, rows)``). Goes before a recorded count.
        gradients:
            For tables whose gradient is not in ``.grad``: that of the batch's rows, with their counts. Read
            after the closure has run, which may fill it.

        Returns
        -------
        Any
            What the closure returned; None without one.

        Raises
        ------
        stampede.ConfigError
            A table is to be clipped and its counts are not known, or ``counts`` do not fit the tables.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        gradients = gradients or {}
        # before any update, so that an error changes nothing
        found = self._find_counts(counts or {}, gradients)
        self.prepare_step(gradients)
        self._apply(gradients, found)
        return loss

    def prepare_step(self, gradients: Mapping[Tensor, RowGradients]) -> None:
        """Do a step's work on the host: the state of new parameters, step numbers, rates."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None or parameter in gradients:
                    self._prepare(parameter, group, self.state[parameter])

    def apply_step(self, gradients: Mapping[Tensor, RowGradients]) -> None:
        """Do a step's work on the device: on CUDA it can be captured in a graph, and replayed."""
        self._apply(gradients, self._find_counts({}, gradients))

    @torch.no_grad()
    def _apply(self, gradients: Mapping[Tensor, RowGradients], counts: Mapping[Tensor, Tensor]) -> None:
        self.clipped = {}
        self._global_norm = self.norm_of_all(gradients, counts)
        for group in self.param_groups:
            for parameter in group["params"]:
                gradient = gradients.get(parameter, parameter.grad)
                if gradient is not None:
                    with record_function(f"stampede: update {group['kind']}"):
                        self._update(parameter, group, gradient, counts.get(parameter))

    def norm_of_all(
        self, gradients: Mapping[Tensor, RowGradients], counts: Mapping[Tensor, Tensor]
    ) -> Tensor | None:
        """Give the norm of the gradients of all tables that are clipped together, L2 included."""
        squares = [
            self.rows_to_update(parameter, group, gradient, counts.get(parameter))
            .grads.double()
            .square()
            .sum()
            for group in self.param_groups
            if group["clip"] == Clip.GLOBAL
            for parameter in group["params"]
            if (gradient := gradients.get(parameter, parameter.grad)) is not None
        ]
        return torch.stack(squares).sum().sqrt() if squares else None

    def clipped_share(self) -> float | None:
        """Give the share of rows that the last step clipped, of all rows of the tables it clips.

        None before the first step or where nothing is clipped. The numbers stay on their device until asked
        for.
        """
        rows = sum(rows for _, rows in self.clipped.values())
        if rows == 0:
            return None
        return sum(int(number) for number, _ in self.clipped.values()) / rows

    def initial_tables(self, group: Mapping[str, Any]) -> dict[str, float]:
        """Give the tables of the weights' shape that the rule keeps, by name, and what they start at."""
        return {}

    def _prepare(self, parameter: Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
        """Make the state of a parameter where it is new, and count its step."""
        if not state:
            state["step"] = torch.zeros((), dtype=torch.int64)
            for name, value in self.initial_tables(group).items():
                table = empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
                state[name] = table.fill_(value)
        state["step"] += 1

    @abstractmethod
    def _apply_rule(
        self, weights: Tensor, grads: Tensor, group: dict[str, Any], state: dict[str, Any]
    ) -> None:
        """Update weights in place by their whole gradient; tables of the state have the weights' shape."""

    def _update(
        self, parameter: Tensor, group: dict[str, Any], gradient: Gradient, counts: Tensor | None
    ) -> None:
        """Update one parameter by plain torch; a subclass may have a faster way."""
        part = self.rows_to_update(parameter, group, gradient, counts)
        if group["clip"] != Clip.NONE:
            if isinstance(gradient, RowGradients):
                counts = gradient.index.dense_counts()
            part.grads, clipped = clip_table(
                part.grads,
                part.weights,
                table=parameter,
                rows=part.rows,
                counts=counts,
                group=group,
                global_norm=self._global_norm,
            )
            self.clipped[parameter] = (clipped.sum(), parameter.shape[0])
        state = self.state[parameter]
        if part.rows is None:
            self._apply_rule(parameter, part.grads, group, state)
            return
        tables = {name: state[name] for name in self.initial_tables(group)}
        parts = {name: table[part.rows] for name, table in tables.items()}
        self._apply_rule(part.weights, part.grads, group, {**state, **parts})
        parameter[part.rows] = part.weights
        for name, table in tables.items():
            table[part.rows] = parts[name]

    def rows_to_update(
        self, parameter: Tensor, group: dict[str, Any], gradient: Gradient, counts: Tensor | None
    ) -> Rows:
        """Give the rows that a step updates, with their gradient and its L2 term."""
        rows = None
        if group["update"] == Update.TOUCHED:
            gradient = compact(gradient, counts)
            used = gradient.index.counts > 0
            rows, grads = gradient.index.rows[used], gradient.sums[used]
        elif isinstance(gradient, RowGradients):
            grads = gradient.to_dense()
        else:
            grads = gradient.coalesce().to_dense() if gradient.is_sparse else gradient
        weights = parameter if rows is None else parameter[rows]
        return Rows(rows, weights, add_l2(grads, weights, l2=group["l2"]))

    def _wants_counts(self, group: Mapping[str, Any]) -> bool:
        """Whether the rule cannot do without the counts of this group's tables."""
        return bool(group["clip"] == Clip.COWCLIP)

    def _find_counts(
        self, given: Mapping[Tensor, Tensor], gradients: Mapping[Tensor, RowGradients]
    ) -> dict[Tensor, Tensor]:
        """Find the counts of every table whose clip or update asks for them."""
        found: dict[Tensor, Tensor] = {}
        tables = {p for group in self.param_groups if group["kind"] != Kind.DENSE for p in group["params"]}
        if any(parameter not in tables for parameter in given):
            raise ConfigError(
                "step(counts={table: counts}) names a tensor that is none of this optimizer's tables, "
                "the groups of kind 'embedding' and 'first_order'"
            )
        asking = [group for group in self.param_groups if self._wants_counts(group)]
        touched = [group for group in self.param_groups if group["update"] == Update.TOUCHED]
        known = {parameter for group in [*asking, *touched] for parameter in group["params"]}
        for group in self.param_groups:
            for index, parameter in enumerate(group["params"]):
                if parameter not in known or parameter.grad is None or parameter in gradients:
                    continue
                counts = given.get(parameter, batch_counts(parameter))
                shape = list(parameter.shape)
                if counts is None:
                    if not self._wants_counts(group):
                        continue  # the rows to update are those with a gradient
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

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_embedding_clip": self._embedding_clip}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.clipped = {}


def compact(gradient: Gradient, counts: Tensor | None) -> RowGradients:
    """Give the rows of a gradient that the batch has: those with a count, else those that are not 0."""
    if isinstance(gradient, RowGradients):
        return gradient
    if gradient.is_sparse:
        gradient = gradient.coalesce()
        num_rows, rows, sums = gradient.shape[0], gradient.indices()[0], gradient.values()
    else:
        num_rows = gradient.shape[0]
        rows = (counts > 0 if counts is not None else gradient.any(1)).nonzero().squeeze(1)
        sums = gradient[rows]
    slots = torch.full((num_rows,), -1, dtype=torch.int32, device=rows.device)
    slots[rows] = torch.arange(len(rows), dtype=torch.int32, device=rows.device)
    ones = torch.ones(len(rows), dtype=torch.int32, device=rows.device)
    kept = ones if counts is None else counts[rows].to(torch.int32)
    return RowGradients(RowIndex(rows, kept, slots), sums)


def check_numbers(
    group: Mapping[str, Any], *, at_least_0: tuple[str, ...] = (), above_0: tuple[str, ...] = ()
) -> None:
    """Raise :class:`ConfigError` for a number of a group that is out of its range."""
    for name in at_least_0:
        if not (group[name] >= 0 and math.isfinite(group[name])):
            raise ConfigError(f"{name} must be a number of 0 or more, not {group[name]}")
    for name in above_0:
        if not (group[name] > 0 and math.isfinite(group[name])):
            raise ConfigError(f"{name} must be a number above 0, not {group[name]}")


def check_betas(group: Mapping[str, Any]) -> None:
    """Raise :class:`ConfigError` unless the group's betas are two numbers in [0, 1)."""
    betas = tuple(group["betas"])
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise ConfigError(f"betas must be two numbers in [0, 1), not {group['betas']}")


def _member(enum: type[_Member], value: Any, name: str) -> _Member:
    try:
        return enum(value)
    except ValueError:
        raise ConfigError(f"unknown {name} {str(value)!r}: choose one of {', '.join(enum)}") from None
