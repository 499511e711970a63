"""Where a run computes."""

from __future__ import annotations

from typing import Literal

import torch

from stampede import DeviceError


def resolve_device(name: Literal["auto", "cpu", "cuda"]) -> torch.device:
    """Return the device of that name; ``auto`` is the first GPU, or the CPU without one.

    Raises
    ------
    DeviceError
        ``cuda`` was asked for and torch sees no GPU.
    """
    if name == "cuda" and not torch.cuda.is_available():
        built = "it was built without CUDA" if torch.version.cuda is None else "it finds no GPU or driver"
        raise DeviceError(
            f"--device cuda: torch {torch.__version__} cannot use a GPU, {built}; take cpu or auto"
        )
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def set_threads(threads: int | None) -> None:
    """Use that many CPU threads, or as many as torch takes: the last digits of a result depend on them."""
    if threads is not None:
        torch.set_num_threads(threads)
