"""Where a run computes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal

import torch

from stampede import ConfigError, DeviceError
from stampede.training.config import Precision

SECONDS_TO_WAIT = 2.0
"""Before the user is told what takes so long."""


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


def set_precision(precision: Precision, device: torch.device, say: Callable[[str], None]) -> None:
    """Set up what the precision of matrix products asks of the process.

    Parameters
    ----------
    say:
        Receives a line where the processor does not multiply in that precision.

    Raises
    ------
    ConfigError
        The device has no such products.
    """
    if precision == "tf32":
        if device.type != "cuda":
            raise ConfigError("--precision tf32 is of GPUs: take float32 or bf16")
        torch.set_float32_matmul_precision("high")
    # torch has no public name for it; on other processors than x86-64 nothing is said
    has_bf16 = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    if precision == "bf16" and device.type == "cpu" and not has_bf16():
        say("--precision bf16: this processor has no bfloat16 products, so it will be slower than float32")


def compile_kernels(say: Callable[[str], None]) -> None:
    """Have the CPU kernels compiled, or read from where they are kept; tell the user if it takes a while."""
    from stampede.kernels.cpu.warm_up import warm_up

    note = threading.Timer(
        SECONDS_TO_WAIT, say, ["loading kernels, or compiling them the first time: some seconds"]
    )
    note.start()
    try:
        warm_up()
    finally:
        note.cancel()


def set_threads(threads: int | None) -> None:
    """Use that many CPU threads, or as many as torch takes: the last digits of a result depend on them."""
    if threads is not None:
        torch.set_num_threads(threads)
