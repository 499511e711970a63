"""A checkpoint -> a model with more ids: what was learned stays, new rows start as they were built.

A vocabulary that grew has its new ids after all others of the field, so the old rows of each field are the
first ones of its part of a fused table. They take their weights and the optimizer's state along; the rows of
new ids keep the initial weights of the new model, and the optimizer begins with them anew. Everything else,
the number of steps too, is copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stampede import CheckpointError
from stampede.training.checkpoint import MODEL, OPTIMIZER, read_model, read_optimizer
from stampede.training.embedding import FusedEmbedding
from stampede.training.optim import TableOptimizer

State = dict[int, dict[str, Tensor]]


def grow_into(
    folder: Path,
    model: nn.Module,
    optimizer: TableOptimizer | None,
    *,
    old_sizes: Sequence[int],
    new_sizes: Sequence[int],
) -> None:
    """Put a checkpoint into a model whose fields have as many ids or more, and into its optimizer.

    Where the checkpoint holds a running mean of the weights, those that training went on with are taken.
    Nothing is changed where it raises.

    Parameters
    ----------
    folder:
        The checkpoint: ``model.safetensors`` and ``optimizer.safetensors``.
    model:
        A new model, with the initial weights that its new rows are to have. Make what copies its weights,
        such as a running mean, afterwards.
    optimizer:
        Over the model's parameters, before its first step; None takes the weights alone.
    old_sizes, new_sizes:
        Ids of each field in the checkpoint and in the model, in the order of the fields.

    Raises
    ------
    CheckpointError
        The checkpoint is missing, damaged, or of another model or optimizer, or a field has fewer ids.
    """
    sizes = _Sizes(tuple(old_sizes), tuple(new_sizes))
    training, state = read_optimizer(folder)
    weights = {**read_model(folder), **training}
    held = model.state_dict()
    tables = _tables_of(model, sizes, folder)
    _check_weights(weights, held, tables, sizes, folder / MODEL)
    grown = None
    if optimizer is not None:
        grown = _grown_state(state, model, optimizer, tables, sizes, folder / OPTIMIZER)
    with torch.no_grad():
        for name, tensor in held.items():
            if name in tables:
                sizes.copy_rows(weights[name], tensor)
            else:
                tensor.copy_(weights[name])
    if optimizer is not None:
        optimizer.load_state_dict({**optimizer.state_dict(), "state": grown})


@dataclass(frozen=True)
class _Sizes:
    """The ids of each field before and now."""

    old: tuple[int, ...]
    new: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.old) != len(self.new):
            raise CheckpointError(
                f"the checkpoint has {len(self.old)} fields where the model has {len(self.new)}: "
                "they must be of one dataset"
            )
        for field, (before, now) in enumerate(zip(self.old, self.new, strict=True)):
            if now < before:
                raise CheckpointError(
                    f"field number {field} has {now} ids where the checkpoint has {before}: a vocabulary may "
                    "only grow"
                )

    def copy_rows(self, source: Tensor, target: Tensor) -> None:
        """Copy the rows of a table [old rows, d] to where they are in one of [new rows, d]."""
        pieces = zip(
            torch.split(source, list(self.old)), torch.split(target, list(self.new)), self.old, strict=True
        )
        for before, now, rows in pieces:
            now[:rows].copy_(before)


def _tables_of(model: nn.Module, sizes: _Sizes, folder: Path) -> set[str]:
    """Return the names of the fused tables of a model."""
    found = {name: module for name, module in model.named_modules() if isinstance(module, FusedEmbedding)}
    for name, module in found.items():
        if module.sizes != sizes.new:
            raise CheckpointError(
                f"{folder}: the table {name} of the model has other fields than it is to grow to"
            )
    return {f"{name}.weight" if name else "weight" for name in found}


def _check_weights(
    weights: Mapping[str, Tensor], held: Mapping[str, Tensor], tables: set[str], sizes: _Sizes, file: Path
) -> None:
    odd = sorted(set(weights) ^ set(held))
    if odd:
        where = "has no" if odd[0] in held else "has a"
        raise CheckpointError(f"{file} is of another model: it {where} {odd[0]}")
    for name, tensor in held.items():
        _check_shape(weights[name], _shape_before(tensor, name in tables, sizes), f"{file}: {name}", "model")


def _shape_before(tensor: Tensor, is_table: bool, sizes: _Sizes) -> list[int]:
    return [sum(sizes.old), *tensor.shape[1:]] if is_table else list(tensor.shape)


def _check_shape(found: Tensor, expected: list[int], where: str, what: str) -> None:
    if list(found.shape) != expected:
        raise CheckpointError(
            f"{where} has the shape {list(found.shape)} where {expected} is wanted: it is of another {what}"
        )


def _grown_state(
    state: State,
    model: nn.Module,
    optimizer: TableOptimizer,
    tables: set[str],
    sizes: _Sizes,
    file: Path,
) -> State:
    """Return the state of an optimizer with rows for the new ids, at what the rule starts with."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    places: list[tuple[Tensor, dict[str, Any]]] = [
        (parameter, group) for group in optimizer.param_groups for parameter in group["params"]
    ]
    if unknown := sorted(set(state) - set(range(len(places)))):
        raise CheckpointError(f"{file} is of another model: it has a state of parameter {unknown[0]}")
    grown: State = {}
    for number, values in state.items():
        parameter, group = places[number]
        initial = optimizer.initial_tables(group)
        if odd := sorted(set(values) ^ {"step", *initial}):
            raise CheckpointError(
                f"{file} is of another optimizer than {type(optimizer).__name__}: "
                f"it {'has' if odd[0] in values else 'has no'} {odd[0]}"
            )
        is_table = names[id(parameter)] in tables
        before = _shape_before(parameter, is_table, sizes)
        grown[number] = {"step": values["step"]}
        for name, value in initial.items():
            _check_shape(values[name], before, f"{file}: {name} of {names[id(parameter)]}", "model")
            grown[number][name] = values[name]
            if is_table:
                table = grown[number][name] = torch.full(parameter.shape, value, dtype=values[name].dtype)
                sizes.copy_rows(values[name], table)
    return grown
