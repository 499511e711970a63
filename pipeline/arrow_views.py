"""The memory of a column of strings, as Arrow lays it out: what kernels read without a copy.

Polars hands out its columns by the Arrow C stream interface
(https://arrow.apache.org/docs/format/CStreamInterface.html); strings come as views of 16 bytes each.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

import polars as pl

STREAM = b"arrow_array_stream"
VIEWS = b"vu"  # the format's letters for string views


class _Schema(ctypes.Structure):
    pass


_Schema._fields_ = [
    ("format", ctypes.c_char_p),
    ("name", ctypes.c_char_p),
    ("metadata", ctypes.c_void_p),
    ("flags", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("children", ctypes.c_void_p),
    ("dictionary", ctypes.c_void_p),
    ("release", ctypes.CFUNCTYPE(None, ctypes.POINTER(_Schema))),
    ("private_data", ctypes.c_void_p),
]


class _Array(ctypes.Structure):
    pass


_Array._fields_ = [
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.c_void_p),
    ("dictionary", ctypes.c_void_p),
    ("release", ctypes.CFUNCTYPE(None, ctypes.POINTER(_Array))),
    ("private_data", ctypes.c_void_p),
]


class _Stream(ctypes.Structure):
    pass


_Stream._fields_ = [
    (
        "get_schema",
        ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Stream), ctypes.POINTER(_Schema)),
    ),
    ("get_next", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Stream), ctypes.POINTER(_Array))),
    ("get_last_error", ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.POINTER(_Stream))),
    ("release", ctypes.CFUNCTYPE(None, ctypes.POINTER(_Stream))),
    ("private_data", ctypes.c_void_p),
]

_pointer_of: Any = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]


@dataclass(frozen=True)
class StringViews:
    """The memory of a String series; it stays where it is as long as this object lives.

    Attributes
    ----------
    rows:
        Number of strings.
    views:
        Address of the first view.
    validity:
        Address of the bits that say which strings are there; 0 where all are.
    validity_offset:
        The bit of the first string.
    buffers:
        Addresses of the buffers that long strings lie in.
    """

    rows: int
    views: int
    validity: int
    validity_offset: int
    buffers: tuple[int, ...]
    _owner: Any = field(repr=False, compare=False)

    @classmethod
    def of(cls, strings: pl.Series) -> StringViews:
        """Return the memory of a String series."""
        if strings.dtype != pl.String:
            raise TypeError(f"a series of strings is wanted, not of {strings.dtype}")
        if strings.is_empty():
            return cls(0, 0, 0, 0, (), None)
        strings = strings.rechunk()
        capsule = strings.__arrow_c_stream__()
        stream = _Stream.from_address(_pointer_of(capsule, STREAM))
        form, array = _Schema(), _Array()
        _check(stream.get_schema(ctypes.byref(stream), ctypes.byref(form)))
        letters = form.format
        form.release(ctypes.byref(form))
        if letters != VIEWS:
            raise TypeError(f"polars gives strings as {letters!r}, not as views")
        _check(stream.get_next(ctypes.byref(stream), ctypes.byref(array)))
        if array.length != len(strings):
            array.release(ctypes.byref(array))
            raise TypeError("polars gives one chunk in pieces")
        addresses = [array.buffers[k] or 0 for k in range(array.n_buffers)]
        # validity, views, the buffers, and last their sizes
        return cls(
            array.length,
            addresses[1] + 16 * array.offset,
            addresses[0] if array.null_count else 0,
            array.offset,
            tuple(addresses[2:-1]),
            _Owner(array),
        )


class _Owner:
    """Keeps an Arrow array until it goes."""

    def __init__(self, array: _Array) -> None:
        self._array = array

    def __del__(self) -> None:
        self._array.release(ctypes.byref(self._array))


def _check(code: int) -> None:
    if code:
        raise TypeError(f"polars does not hand out a column (error {code})")
