"""The fast paths on NVIDIA GPUs: CUDA C launched through CuPy, and numba-cuda kernels.

All run on torch's current stream, on torch's memory and without copies or waits, and can be captured in a
CUDA graph once each has run before (the first call compiles). Tables are float32.

CUDA C, the embedding step:

- :func:`gather`: rows of a batch from the embedding table, and sums of its first-order weights
- :class:`CudaRowAccumulator`: counts and gradient sums of a batch's rows, in a fixed order
- :func:`update_table`, :func:`update_entries`, :func:`update_values`: L2, CowClip and Adam in one pass

numba-cuda, around the step, where a launch may take 0.1 ms of the CPU:

- :func:`gather_batch`: rows of a dataset that lies in device memory, in one kernel
- :func:`clip_rows`: CowClip alone, on a dense gradient

:func:`check_on_device` holds all of them to the plain references on the GPU at hand. ``python -m
stampede.kernels.cuda.compile`` compiles the CUDA C for every architecture, without a GPU.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stampede.kernels.cuda.accumulate import CudaRowAccumulator
    from stampede.kernels.cuda.batch import Batch, gather_batch
    from stampede.kernels.cuda.check import check_on_device
    from stampede.kernels.cuda.clip import clip_rows
    from stampede.kernels.cuda.lookup import gather
    from stampede.kernels.cuda.update import update_entries, update_table, update_values

__all__ = [
    "Batch",
    "CudaRowAccumulator",
    "check_on_device",
    "clip_rows",
    "gather",
    "gather_batch",
    "update_entries",
    "update_table",
    "update_values",
]

_HOMES = {
    "Batch": "batch",
    "CudaRowAccumulator": "accumulate",
    "check_on_device": "check",
    "clip_rows": "clip",
    "gather": "lookup",
    "gather_batch": "batch",
    "update_entries": "update",
    "update_table": "update",
    "update_values": "update",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for: without a GPU, neither CuPy nor numba-cuda need be there."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
