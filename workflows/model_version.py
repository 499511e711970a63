"""Which model it is: the run, the step of its best checkpoint, and a fingerprint of the weights."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

import torch
from torch import nn

from stampede import CheckpointError
from stampede.training.checkpoint import BEST
from stampede.training.models import CTRModel
from stampede.workflows.run import Run

DIGEST_BYTES = 6


@dataclass(frozen=True)
class ModelVersion:
    """Name of the run's folder, step of the checkpoint, and the first 12 hex digits of the weights' hash."""

    run: str
    step: int
    fingerprint: str

    def __str__(self) -> str:
        return f"{self.run}/step-{self.step}/{self.fingerprint}"


def load_best_model(run: Run, device: torch.device) -> tuple[CTRModel, ModelVersion]:
    """Return the model of a run with the weights of its best epoch, and which one it is.

    Raises
    ------
    CheckpointError
        The run has no finished epoch, is damaged, or another epoch became the best meanwhile.
    """
    folder = (run.path / BEST).resolve()
    model = run.load_model(device)
    file = folder / "state.json"
    try:
        step = int(json.loads(file.read_text("utf-8"))["step"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{file} is missing or damaged") from error
    if (run.path / BEST).resolve() != folder:
        raise CheckpointError(f"the best epoch of {run.path} changed while it was read: run this again")
    return model, ModelVersion(run.path.resolve().name, step, fingerprint_of(model))


def fingerprint_of(model: nn.Module) -> str:
    """Hash the names and values of all weights: blake2b of 6 bytes, as hex digits."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()
