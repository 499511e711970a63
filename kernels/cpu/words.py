"""Text in memory, eight bytes at a time: what the kernels that read logs are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import extending, njit, types

# numba has no types for these
_intrinsic: Any = extending.intrinsic

ONES = np.uint64(0x0101010101010101)
_HIGH_BITS = np.uint64(0x8080808080808080)


@_intrinsic
def load_word(typing_context: Any, address: Any) -> Any:
    """Read the eight bytes at an address, aligned or not, as uint64: the first byte is the lowest."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        pointer = builder.inttoptr(values[0], ir.IntType(64).as_pointer())
        return builder.load(pointer, align=1)

    return types.uint64(types.int64), generate


@_intrinsic
def load_byte(typing_context: Any, address: Any) -> Any:
    """Read the byte at an address, as an int64."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        pointer = builder.inttoptr(values[0], ir.IntType(8).as_pointer())
        return builder.zext(builder.load(pointer), ir.IntType(64))

    return types.int64(types.int64), generate


@_intrinsic
def trailing_zeros(typing_context: Any, word: Any) -> Any:
    """Count the zero bits below the lowest one bit of a uint64; 64 where there is none."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.cttz(values[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate


@njit(inline="always")
def matches(word: Any, repeated: Any) -> Any:
    """Mark the bytes of a word that equal the byte of which ``repeated`` is made, by their high bits.

    The lowest mark is right, others need not be (Warren, Hacker's Delight, 6-1).
    """
    difference = word ^ repeated
    return (difference - ONES) & ~difference & _HIGH_BITS


@njit(inline="always")
def first_bytes(word: Any, count: Any) -> Any:
    """Keep the first ``count`` bytes of a word and clear the others."""
    if count >= 8:
        return word
    return word & ((np.uint64(1) << np.uint64(8 * count)) - np.uint64(1))


def compiled(signature: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile for one signature; keep the machine code on disk where there is a place that can be written.

    The compiled function lets go of the interpreter while it runs.
    """
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    result: Callable[..., Any]
    try:
        result = njit([signature], cache=True, **options)(function)
    except Exception:
        # nowhere to write, a full disk, or a file there that was cut short
        result = njit([signature], **options)(function)
    return result
