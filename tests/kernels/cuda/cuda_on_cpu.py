"""Runs the CUDA C kernels on the CPU: compiled by g++ as C++, called with what CuPy would be called with."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from stampede.kernels.cuda.launch import SOURCES, Argument, Kernel, source_of

COMPILER = shutil.which("g++")

_POINTEES = {
    "float": torch.float32,
    "int": torch.int32,
    "long long": torch.int64,
    "unsigned long long": torch.int64,  # torch's name for the same 8 bytes
}
_NUMBERS = {"float": np.float32, "int": np.int32, "long long": np.int64}
_CTYPES = {"float": ctypes.c_float, "int": ctypes.c_int, "long long": ctypes.c_longlong}


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel as its CUDA C says: ``const float* sums`` is (float, pointer, constant)."""

    name: str
    type: str
    is_pointer: bool
    is_constant: bool


def signatures_of(source: str) -> dict[str, list[Parameter]]:
    """Read the kernels' signatures from CUDA C."""
    plain = re.sub(r"//[^\n]*", "", source)
    found = re.findall(r'extern "C" __global__ void __launch_bounds__\([^)]*\)\s*(\w+)\(([^)]*)\)', plain)
    return {name: _parameters(text) for name, text in found}


def _parameters(text: str) -> list[Parameter]:
    parameters, declared = [], ""
    for part in text.split(","):
        match = re.fullmatch(r"(const )?([a-z ]+?)(\*?) (\w+)", " ".join(part.split()))
        assert match is not None, part
        constant, declared, star, name = match.groups()
        parameters.append(Parameter(name, declared, bool(star), bool(constant)))
    return parameters


class CpuKernels:
    """Stands in for CuPy: ``load(kernel)(grid, block, arguments)``, each argument held to the signature."""

    def __init__(self, folder: Path, sources: dict[str, str] | None = None) -> None:
        sources = sources or {name: source_of(name) for name in SOURCES}
        self.signatures = {name: signatures_of(source) for name, source in sources.items()}
        self._libraries = {
            name: ctypes.CDLL(str(self._compile(name, source, folder))) for name, source in sources.items()
        }
        self.reverse = False
        self._tensors: list[Tensor | None] = []

    def _compile(self, name: str, source: str, folder: Path) -> Path:
        assert COMPILER is not None
        wrappers = "\n".join(_wrapper(kernel, parts) for kernel, parts in self.signatures[name].items())
        cpp = folder / f"{name}.cpp"
        cpp.write_text(f'#include "cuda_on_cpu.h"\n{source}\n{wrappers}')
        library = folder / f"{name}.so"
        command = [
            *(COMPILER, "-std=c++17", "-O1", "-ffp-contract=off", "-fno-strict-aliasing", "-shared", "-fPIC"),
            # A misaligned vector load or an index beyond an array stops the process.
            *("-fsanitize=alignment,bounds", "-fsanitize-undefined-trap-on-error", "-Wno-unknown-pragmas"),
            *(f"-I{Path(__file__).parent}", str(cpp), "-o", str(library)),
        ]
        subprocess.run(command, check=True, capture_output=True, text=True)
        return library

    def remember(self, arguments: Sequence[Argument]) -> None:
        """Keep the tensors whose addresses are packed next, to hold their types to the signature."""
        self._tensors = [a if isinstance(a, Tensor) else None for a in arguments]

    def load(self, kernel: Kernel) -> CpuFunction:
        return CpuFunction(self, kernel)

    def run(self, kernel: Kernel, blocks: int, threads: int, arguments: tuple[np.generic, ...]) -> None:
        parameters = self.signatures[kernel.source][kernel.name]
        assert len(arguments) == len(parameters), kernel
        values = []
        for parameter, value, tensor in zip(parameters, arguments, self._tensors, strict=True):
            wanted = np.uint64 if parameter.is_pointer else _NUMBERS[parameter.type]
            assert type(value) is wanted, f"{kernel.name}, {parameter}: {type(value)}"
            if tensor is not None:
                assert parameter.is_pointer, parameter
                assert tensor.dtype == _POINTEES[parameter.type], (
                    f"{kernel.name}, {parameter}: {tensor.dtype}"
                )
                assert tensor.is_contiguous(), parameter
            kind = ctypes.c_void_p if parameter.is_pointer else _CTYPES[parameter.type]
            values.append(kind(value.item()))
        function = getattr(self._libraries[kernel.source], f"launch_{kernel.name}")
        function.restype = ctypes.c_char_p
        fault = function(ctypes.c_uint(blocks), ctypes.c_uint(threads), ctypes.c_bool(self.reverse), *values)
        assert fault is None, f"{kernel.name}: {fault.decode()}"


@dataclass(frozen=True)
class CpuFunction:
    """A kernel in the shape of CuPy's ``RawKernel``."""

    kernels: CpuKernels
    kernel: Kernel

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[np.generic, ...]) -> None:
        (blocks,), (threads,) = grid, block
        assert 0 < blocks < 2**31
        self.kernels.run(self.kernel, blocks, threads, args)


def _wrapper(kernel: str, parameters: list[Parameter]) -> str:
    """Write a C function that runs a kernel over a grid."""
    declared = ", ".join(
        f"{'const ' if p.is_constant else ''}{p.type}{'*' if p.is_pointer else ''} {p.name}"
        for p in parameters
    )
    names = ", ".join(p.name for p in parameters)
    return (
        f'extern "C" const char* launch_{kernel}('
        f"unsigned blocks, unsigned threads, bool reverse, {declared}) {{\n"
        f"    return fibers::launch(blocks, threads, reverse, [&] {{ {kernel}({names}); }});\n}}\n"
    )
