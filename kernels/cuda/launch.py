"""Launches the CUDA C kernels through CuPy, on torch's current stream and torch's memory."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stampede import DeviceError

SOURCES = ("lookup", "reduce", "update")
"""The files of CUDA C, without their suffix."""

OPTIONS = ("--std=c++17",)
"""What the compiler is told, besides the architecture."""

Argument = Tensor | np.generic | None
"""A kernel's argument: a tensor goes as its address, None as the null pointer; numbers have numpy's types."""


@dataclass(frozen=True)
class Kernel:
    """A kernel of a source file, and the threads of its blocks."""

    source: str
    name: str
    threads: int = 256


def source_of(name: str) -> str:
    """Give the text of a file of CUDA C, with what all of them share before it."""
    folder = Path(__file__).parent
    return (folder / "lanes.cuh").read_text() + (folder / f"{name}.cu").read_text()


def launch(kernel: Kernel, *arguments: Argument, blocks: int, device: torch.device) -> None:
    """Queue a kernel; nothing for 0 blocks.

    Raises
    ------
    stampede.DeviceError
        CuPy is not installed, or finds no GPU.
    ValueError
        The tensors are not on a CUDA device.
    """
    if blocks == 0:
        return
    function = load(kernel)
    with on_stream(device):
        function((blocks,), (kernel.threads,), pack(arguments))


def pack(arguments: Sequence[Argument]) -> tuple[np.generic, ...]:
    """Turn tensors into addresses. Plain numbers are refused: CuPy would pass 8 bytes for each."""
    return tuple(
        np.uint64(0 if a is None else a.data_ptr()) if a is None or isinstance(a, Tensor) else _number(a)
        for a in arguments
    )


def _number(value: np.generic) -> np.generic:
    if not isinstance(value, np.generic):
        raise TypeError(f"a kernel takes tensors and numpy's numbers, not {type(value).__name__}")
    return value


@cache
def load(kernel: Kernel) -> Any:
    """Compile a kernel's file, at most once, and give the CuPy function."""
    return _module(kernel.source).get_function(kernel.name)


@cache
def _module(source: str) -> Any:
    return import_gpu_package("cupy").RawModule(code=source_of(source), options=OPTIONS)


def on_stream(device: torch.device) -> AbstractContextManager[Any]:
    """Make torch's current stream of a device CuPy's as well."""
    if device.type != "cuda":
        raise ValueError(f"the kernels run on CUDA tensors, not on {device}")
    stack = ExitStack()
    stack.enter_context(torch.cuda.device(device))
    stack.enter_context(_cupy_stream(torch.cuda.current_stream().cuda_stream, torch.cuda.current_device()))
    return stack


@cache
def _cupy_stream(handle: int, device: int) -> Any:
    """Give torch's stream as CuPy's. Torch has a few dozen streams a device and uses them again and again."""
    return import_gpu_package("cupy").cuda.Stream.from_external(_Stream(handle))


class _Stream:
    """A stream in the protocol that CuPy reads; torch's own class has it since 2.10 alone."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


def import_gpu_package(name: str) -> Any:
    """Import what only machines with a GPU need to have.

    Raises
    ------
    stampede.DeviceError
        It is missing or cannot be loaded.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise DeviceError(
            f"the GPU path needs {package}, which is not there ({error}): pip install 'stampede-ctr[cuda]'"
        ) from error
