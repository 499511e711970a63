"""Runs a compiled kernel on the threads that torch computes with.

A kernel is a C function of one pointer that takes tasks off a counter until none is left. Every thread of a
team calls it once. The team is the one of the OpenMP runtime that torch has loaded: a second pool of threads
would fight for the cores with torch's, which spin for milliseconds after each operation (measured on 2
cores: a pass over 1M x 11 values on both takes 4.8 ms in torch's team, 6 ms in a pool of its own).

Who runs a task never decides what it computes, so results do not depend on the number of threads.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import extending, njit, types
from torch import Tensor

COUNTER, TASKS, FIRST_ARGUMENT = 0, 1, 2
"""Places in a kernel's arguments, int64: the counter, how many tasks there are, and what the kernel takes."""

TYPES: dict[torch.dtype, Any] = {
    torch.float32: types.float32,
    torch.float64: types.float64,
    torch.int32: types.int32,
    torch.int64: types.int64,
    torch.bfloat16: types.uint16,
}
"""The numba types of what kernels read and write; of bfloat16, its bits."""

SIGNATURE = types.void(types.CPointer(types.int64))


# numba has types for some of these only
_intrinsic: Any = extending.intrinsic
_cfunc: Any = numba.cfunc
carray: Any = numba.carray  # type: ignore[attr-defined]


@_intrinsic
def next_task(typing_context: Any, arguments: Any) -> Any:
    """Take the next task off the counter: an atomic fetch-and-add on the first argument."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.atomic_rmw("add", values[0], ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(arguments), generate


@_intrinsic
def _as_pointer(typing_context: Any, address: Any) -> Any:
    """Turn an address into a pointer without a type."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), generate


@njit(inline="always")
def array_at(address: Any, size: Any, dtype: Any) -> Any:
    """View ``size`` values at an address as a flat array."""
    return carray(_as_pointer(address), (size,), dtype)


@_intrinsic
def float_of(typing_context: Any, bits: Any) -> Any:
    """Read an argument, the bits of a float64, as the number it is."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.bitcast(values[0], ir.DoubleType())

    return types.float64(types.int64), generate


@_intrinsic
def float32_of(typing_context: Any, bits: Any) -> Any:
    """Read the bits of a float32, uint32, as the number it is."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.bitcast(values[0], ir.FloatType())

    return types.float32(types.uint32), generate


@_intrinsic
def prefetch(typing_context: Any, address: Any) -> Any:
    """Ask for the cache line at an address, to be written soon; any address may be asked for."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        i32, pointer = ir.IntType(32), ir.IntType(8).as_pointer()
        function = builder.module.declare_intrinsic(
            "llvm.prefetch", (pointer,), ir.FunctionType(ir.VoidType(), [pointer, i32, i32, i32])
        )
        hints = [ir.Constant(i32, hint) for hint in (1, 3, 1)]  # for writing, into every cache, data
        builder.call(function, [builder.inttoptr(values[0], pointer), *hints])
        return _context.get_dummy_value()

    return types.none(types.int64), generate


class Kernel:
    """A compiled kernel, to be called with its tasks and arguments.

    Parameters
    ----------
    function:
        ``function(arguments: int64 pointer) -> None`` for numba, which takes tasks by :func:`next_task`.
    """

    def __init__(self, function: Callable[[Any], None]) -> None:
        compiled = _compile(function)
        self._compiled = compiled  # owns the machine code
        self._address: int = compiled.address
        self._call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._address)

    def __call__(self, tasks: int, *arguments: int | float | Tensor) -> None:
        """Run tasks ``0 .. tasks - 1``; tensors go as their address, floats as the bits of a float64."""
        if tasks <= 0:
            return
        packed = np.empty(FIRST_ARGUMENT + len(arguments), np.int64)
        bits = packed.view(np.float64)
        packed[COUNTER], packed[TASKS] = 0, tasks
        for place, argument in enumerate(arguments, FIRST_ARGUMENT):
            if isinstance(argument, Tensor):
                packed[place] = argument.data_ptr()
            elif isinstance(argument, float):
                bits[place] = argument
            else:
                packed[place] = argument
        threads = min(torch.get_num_threads(), tasks)
        pointer = packed.ctypes.data
        parallel = _openmp_parallel()
        if threads == 1:
            self._call(pointer)
        elif parallel is not None:
            parallel(self._address, pointer, threads, 0)
        else:
            _run_in_pool(self._call, pointer, threads)


def _compile(function: Callable[[Any], None]) -> Any:
    """Compile, and keep the machine code on disk where there is a place that can be written."""
    options = {
        "error_model": "numpy",
        "fastmath": {"contract"},
    }  # fused multiply-add; nothing else is given up
    try:
        return _cfunc(SIGNATURE, cache=True, **options)(function)
    except Exception:
        # nowhere to write, a full disk, or a file there that was cut short
        return _cfunc(SIGNATURE, **options)(function)


@cache
def _openmp_parallel() -> Callable[[int, int, int, int], None] | None:
    """Return ``GOMP_parallel`` of the OpenMP runtime that torch uses; None where it has another.

    Both GNU's and LLVM's runtimes for Linux have this entry: ``(function, data, threads, flags)``.
    """
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return None
    lines = (line.split(maxsplit=5) for line in maps.splitlines())
    loaded = dict.fromkeys(parts[5] for parts in lines if len(parts) == 6)
    libraries = [path for path in loaded if Path(path).name.startswith(("libgomp", "libiomp5", "libomp"))]
    # the one that lies beside torch first: another package may have brought one of its own
    torch_folder = str(Path(torch.__file__).parent)
    libraries.sort(key=lambda path: not path.startswith(torch_folder))
    for path in libraries:
        try:
            function = ctypes.CDLL(path).GOMP_parallel
        except (OSError, AttributeError):
            continue
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        function.restype = None
        parallel: Callable[[int, int, int, int], None] = function
        return parallel
    return None


_pool: ThreadPoolExecutor | None = None
_pool_owner = -1
_pool_lock = threading.Lock()


def _run_in_pool(call: Callable[[int], None], pointer: int, threads: int) -> None:
    """Run a kernel on this thread and others of a pool; ctypes lets go of the interpreter meanwhile."""
    global _pool, _pool_owner
    with _pool_lock:
        if _pool is None or _pool_owner != os.getpid():
            _pool = ThreadPoolExecutor(
                max(os.cpu_count() or 1, threads), thread_name_prefix="stampede-kernel"
            )
            _pool_owner = os.getpid()
    others = [_pool.submit(call, pointer) for _ in range(threads - 1)]
    call(pointer)
    for other in others:
        other.result()
