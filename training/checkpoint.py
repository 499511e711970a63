"""Checkpoints of a run: ``checkpoints/step-N/{model.safetensors, optimizer.safetensors, state.json}``.

A checkpoint appears whole or not at all, and carries the checksums of its files, so that a damaged one is
known as such. ``best`` is a link to the one that evaluation and prediction use.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from stampede import CheckpointError

FOLDER = "checkpoints"
BEST = "best"
MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
WEIGHT = "weight."
FORMAT_VERSION = 2

_NAME = re.compile(r"step-\d+")
_UNFINISHED, _REPLACED = ".unfinished", ".replaced"
_CHUNK: Final = 1 << 22


class DamagedCheckpointError(CheckpointError):
    """A checkpoint whose files are not what was written; one before it may do."""


def save_checkpoint(
    run: Path,
    *,
    step: int,
    model: nn.Module,
    optimizer: Optimizer,
    state: Mapping[str, Any],
    training_weights: Mapping[str, Tensor] | None = None,
) -> Path:
    """Write the checkpoint of a step and return its folder; one that is there is replaced.

    Parameters
    ----------
    state:
        Any JSON document.
    training_weights:
        The weights that training goes on with, where the model holds others: their running mean.

    Raises
    ------
    CheckpointError
        It cannot be written; what was there before is as it was.
    """
    folder = folder_of(run, step)
    unfinished, replaced = (folder.with_name(f".{folder.name}{end}") for end in (_UNFINISHED, _REPLACED))
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        weights = {f"{WEIGHT}{name}": tensor for name, tensor in (training_weights or {}).items()}
        _save(_plain(model.state_dict()), unfinished / MODEL)
        _save(_optimizer_tensors(optimizer) | _plain(weights), unfinished / OPTIMIZER)
        checksums = {name: _checksum(unfinished / name) for name in (MODEL, OPTIMIZER)}
        document = {"format_version": FORMAT_VERSION, "step": step, "checksums": checksums, **state}
        document["checksum"] = _checksum_of(document)
        (unfinished / STATE).write_text(json.dumps(document, indent=1) + "\n", "utf-8")
        for file in (unfinished / STATE, unfinished):
            _sync(file)
        if folder.exists():
            shutil.rmtree(replaced, ignore_errors=True)
            folder.rename(replaced)
        unfinished.rename(folder)
        _sync(folder.parent)
        shutil.rmtree(replaced, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise CheckpointError(f"cannot write the checkpoint {folder}: {_reason(error)}") from error
    return folder


def folder_of(run: Path, step: int) -> Path:
    """Return where the checkpoint of a step lies."""
    return run / FOLDER / f"step-{step}"


def step_of(folder: Path) -> int:
    """Return the step of a checkpoint's folder."""
    return int(folder.name.removeprefix("step-"))


def checkpoints_of(run: Path) -> list[Path]:
    """Return the folders of a run's checkpoints, the latest first."""
    folders = [folder for folder in (run / FOLDER).glob("step-*") if _NAME.fullmatch(folder.name)]
    return sorted(folders, key=step_of, reverse=True)


def mark_best(run: Path, step: int) -> None:
    """Make ``best`` the link to the checkpoint of a step, at once."""
    link = run / f".{BEST}.new"
    try:
        link.unlink(missing_ok=True)
        link.symlink_to(Path(FOLDER) / folder_of(run, step).name)
        if (run / BEST).is_dir() and not (run / BEST).is_symlink():  # the run was copied without its links
            shutil.rmtree(run / BEST)
        link.replace(run / BEST)
    except OSError as error:
        raise CheckpointError(f"cannot write {run / BEST}: {error.strerror}") from error


def prune_checkpoints(run: Path, *, keep: Iterable[int]) -> None:
    """Remove all checkpoints but those of some steps, and what an interrupted write left."""
    kept = {folder_of(run, step).name for step in keep}
    for folder in (run / FOLDER).iterdir():
        if folder.name not in kept:
            shutil.rmtree(folder, ignore_errors=True)


def prune_later(run: Path, *, step: int) -> None:
    """Remove the checkpoints after a step: a run that goes on from there comes to them again."""
    for folder in checkpoints_of(run):
        if step_of(folder) > step:
            shutil.rmtree(folder, ignore_errors=True)


def recover(run: Path) -> None:
    """Finish or undo the write of a checkpoint that was cut short."""
    for folder in (run / FOLDER).glob(f".*{_REPLACED}"):
        whole = folder.with_name(folder.name.removeprefix(".").removesuffix(_REPLACED))
        if whole.exists():
            shutil.rmtree(folder, ignore_errors=True)
        else:
            folder.rename(whole)
    for folder in (run / FOLDER).glob(f".*{_UNFINISHED}"):
        shutil.rmtree(folder, ignore_errors=True)


def read_state(folder: Path) -> dict[str, Any]:
    """Return the state that was saved with a checkpoint, once its files are found to be whole.

    Raises
    ------
    DamagedCheckpointError
        A file is missing, cut short or changed.
    CheckpointError
        It is of a format that this version does not know.
    """
    file = folder / STATE
    try:
        document = json.loads(file.read_text("utf-8"))
        version, whole = document["format_version"], "checksum" not in document or _is_whole(document)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DamagedCheckpointError(f"{file} is missing or damaged") from error
    if not whole:
        raise DamagedCheckpointError(f"{file} is damaged: its checksum is another")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise CheckpointError(
            f"{folder} has format {version}, and this version of Stampede reads up to {FORMAT_VERSION}: "
            "go on with a newer one"
        )
    if version != FORMAT_VERSION:
        raise CheckpointError(
            f"{folder} has format {version}, made before runs could be resumed: it can be evaluated and "
            "used, not trained on"
        )
    if "checksum" not in document:
        raise DamagedCheckpointError(f"{file} is damaged: it has no checksum")
    for name, checksum in document["checksums"].items():
        _check_file(folder / name, checksum)
    return {
        name: value
        for name, value in document.items()
        if name not in ("format_version", "checksum", "checksums")
    }


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
    file = folder / MODEL
    try:
        model.load_state_dict(read_model(folder))
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
    file = folder / OPTIMIZER
    weights, state = read_optimizer(folder)
    try:
        model.load_state_dict(weights, strict=False)
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    except (RuntimeError, ValueError, KeyError) as error:
        raise CheckpointError(f"{file} is of another model or optimizer: {error}") from error


def read_model(folder: Path) -> dict[str, Tensor]:
    """Read the weights that a checkpoint is evaluated with, by name.

    Raises
    ------
    CheckpointError
        The file is missing or damaged.
    """
    return _load(folder, MODEL)


def read_optimizer(folder: Path) -> tuple[dict[str, Tensor], dict[int, dict[str, Tensor]]]:
    """Read what a checkpoint holds besides the model.

    Returns
    -------
    tuple
        The weights that training goes on with, by name (none where they are the model's own), and the
        optimizer's state: number of the parameter -> name -> tensor.

    Raises
    ------
    CheckpointError
        The file is missing or damaged.
    """
    state: dict[int, dict[str, Tensor]] = {}
    weights: dict[str, Tensor] = {}
    for key, tensor in _load(folder, OPTIMIZER).items():
        index, _, name = key.partition(".")
        if key.startswith(WEIGHT):
            weights[key.removeprefix(WEIGHT)] = tensor
        elif index.isdecimal() and name:
            state.setdefault(int(index), {})[name] = tensor
        else:
            raise CheckpointError(f"{folder / OPTIMIZER} is damaged: it holds {key}")
    return weights, state


def _load(folder: Path, name: str) -> dict[str, Tensor]:
    """Read the tensors of a file, once it is found to be what was written."""
    file = folder / name
    if not folder.exists():
        raise CheckpointError(f"{file} is missing: the run has no finished epoch")
    try:
        checksum = json.loads((folder / STATE).read_text("utf-8"))["checksums"][name]
    except (OSError, ValueError, TypeError, KeyError):
        checksum = None  # of an older format, or state.json is lost: safetensors finds what is cut short
    if checksum is not None:
        _check_file(file, checksum)
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise DamagedCheckpointError(f"{file} is missing or damaged: {error}") from error


def _check_file(file: Path, checksum: int) -> None:
    try:
        found = _checksum(file)
    except OSError as error:
        raise DamagedCheckpointError(f"{file} is missing or damaged: {error.strerror}") from error
    if found != checksum:
        raise DamagedCheckpointError(f"{file} is damaged: its checksum is another")


def _optimizer_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    state = optimizer.state_dict()["state"]
    return _plain(
        {f"{index}.{name}": value for index, values in state.items() for name, value in values.items()}
    )


def _save(tensors: dict[str, Tensor], file: Path) -> None:
    save_file(tensors, file)
    file.chmod(file.parent.stat().st_mode & 0o666)  # safetensors lets only the owner read
    _sync(file)


def _plain(tensors: dict[str, Any]) -> dict[str, Tensor]:
    return {name: torch.as_tensor(value).detach().cpu().contiguous() for name, value in tensors.items()}


def _checksum(file: Path) -> int:
    """Return the CRC-32 of a file: it finds damage, and reads a gigabyte in a second."""
    value = 0
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            value = zlib.crc32(chunk, value)
    return value


def _is_whole(document: Mapping[str, Any]) -> bool:
    rest = {name: value for name, value in document.items() if name != "checksum"}
    return bool(document["checksum"] == _checksum_of(rest))


def _checksum_of(document: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(document, sort_keys=True).encode())


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reason(error: Exception) -> str:
    """Say why a write failed; safetensors tells an error of the system in words alone."""
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    if full or f"os error {errno.ENOSPC}" in str(error) or f"os error {errno.EDQUOT}" in str(error):
        return "the disk is full; free some room, then go on with --resume"
    return (isinstance(error, OSError) and error.strerror) or str(error)
