"""Checkpoints of a run: ``checkpoints/step-N/{model.safetensors, optimizer.safetensors, state.json}``.

A checkpoint appears whole or not at all. ``best`` is a link to the one that evaluation and prediction use.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from stampede import CheckpointError

FOLDER = "checkpoints"
BEST = "best"
WEIGHT = "weight."
FORMAT_VERSION = 1


def save_checkpoint(
    run: Path,
    *,
    step: int,
    model: nn.Module,
    optimizer: Optimizer,
    state: dict[str, Any],
    training_weights: Mapping[str, Tensor] | None = None,
) -> Path:
    """Write the checkpoint of a step and return its folder.

    Parameters
    ----------
    state:
        Any JSON document.
    training_weights:
        The weights that training goes on with, where the model holds others: their running mean.
    """
    folder = run / FOLDER / f"step-{step}"
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        _save(_plain(model.state_dict()), unfinished / "model.safetensors")
        weights = {f"{WEIGHT}{name}": tensor for name, tensor in (training_weights or {}).items()}
        _save(_optimizer_tensors(optimizer) | _plain(weights), unfinished / "optimizer.safetensors")
        document = {"format_version": FORMAT_VERSION, "step": step, **state}
        (unfinished / "state.json").write_text(json.dumps(document, indent=1) + "\n", "utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise CheckpointError(f"cannot write the checkpoint {folder}: {error}") from error
    return folder


def mark_best(run: Path, folder: Path) -> None:
    """Make ``best`` the link to this checkpoint, in one step."""
    link = run / f".{BEST}.new"
    link.unlink(missing_ok=True)
    link.symlink_to(Path(FOLDER) / folder.name)
    link.replace(run / BEST)


def prune_checkpoints(run: Path, *, keep: Path) -> None:
    """Remove all checkpoints but this one and the best."""
    kept = {keep.name, (run / BEST).resolve().name}
    for folder in (run / FOLDER).glob("step-*"):
        if folder.name not in kept:
            shutil.rmtree(folder)


def load_best(run: Path, model: nn.Module) -> None:
    """Put the weights of the best checkpoint into a model of the same shape.

    Raises
    ------
    CheckpointError
        There is none, it is damaged, or it is of another model.
    """
    load_model(run / BEST, model)


def load_model(folder: Path, model: nn.Module) -> None:
    """Put the weights of a checkpoint into a model of the same shape; see :func:`load_best`."""
    file = folder / "model.safetensors"
    try:
        tensors = load_file(file)
    except FileNotFoundError as error:
        raise CheckpointError(f"{file} is missing: the run has no finished epoch") from error
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file} is damaged: {error}") from error
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise CheckpointError(f"{file} is of another model: {reason}") from error


def load_training_state(folder: Path, model: nn.Module, optimizer: Optimizer) -> None:
    """Put the weights and the optimizer's state of a checkpoint in place, to train on from there.

    Raises
    ------
    CheckpointError
        A file is missing, damaged, or of another model or optimizer.
    """
    load_model(folder, model)
    file = folder / "optimizer.safetensors"
    try:
        tensors = load_file(file)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file} is missing or damaged: {error}") from error
    state: dict[int, dict[str, Tensor]] = {}
    weights: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        if key.startswith(WEIGHT):
            weights[key.removeprefix(WEIGHT)] = tensor
        else:
            index, name = key.split(".", 1)
            state.setdefault(int(index), {})[name] = tensor
    try:
        model.load_state_dict(weights, strict=False)
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    except (RuntimeError, ValueError, KeyError) as error:
        raise CheckpointError(f"{file} is of another model or optimizer: {error}") from error


def _optimizer_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    state = optimizer.state_dict()["state"]
    return _plain(
        {f"{index}.{name}": value for index, values in state.items() for name, value in values.items()}
    )


def _save(tensors: dict[str, Tensor], file: Path) -> None:
    save_file(tensors, file)
    file.chmod(file.parent.stat().st_mode & 0o666)  # safetensors lets only the owner read


def _plain(tensors: dict[str, Any]) -> dict[str, Tensor]:
    return {name: torch.as_tensor(value).detach().cpu().contiguous() for name, value in tensors.items()}
