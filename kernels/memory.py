"""Memory for what is read at random places, or used anew at every step."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
_LARGEST_THRESHOLD = 32 << 20  # what it takes


def empty(
    shape: Sequence[int], *, dtype: torch.dtype = torch.float32, device: torch.device | str | None = None
) -> Tensor:
    """Make a tensor of any content, of huge pages where it is large and on a CPU.

    A random access into a table of small pages costs a walk through the page tables besides the cache miss.
    numpy asks the system for huge pages (MADV_HUGEPAGE); torch does not.
    """
    if torch.device(device if device is not None else "cpu").type != "cpu" or 0 in shape:
        return torch.empty(tuple(shape), dtype=dtype, device=device)
    memory = np.empty(math.prod(shape) * dtype.itemsize, np.uint8)
    return torch.from_numpy(memory).view(dtype).view(*shape)


@cache
def keep_freed_memory() -> None:
    """Let the process keep what it frees, for the tensors of its next step.

    glibc gives large blocks back to the system at once, and the next step's activations then fault in page by
    page (7,000 faults in a step of 8,192 rows). Elsewhere than with glibc this does nothing.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_THRESHOLD)
        mallopt(_M_TRIM_THRESHOLD, 1 << 30)
