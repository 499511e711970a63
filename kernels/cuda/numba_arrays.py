"""What numba-cuda kernels need of torch: its memory as arrays, its current stream.

With ``NUMBA_ENABLE_CUDASIM=1`` numba runs kernels in Python, on CPU tensors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stampede.kernels.cuda.launch import import_gpu_package

import_gpu_package("numba_cuda")  # numba has an older numba.cuda of its own, which knows no recent GPU
cuda = import_gpu_package("numba.cuda")
_SIMULATED = bool(import_gpu_package("numba").config.ENABLE_CUDASIM)


def grid(blocks: int) -> int:
    """Give the blocks of a kernel that loops: below 128, numba would warn that a GPU is not used well."""
    return blocks if _SIMULATED else max(blocks, 128)


def as_array(tensor: Tensor) -> Any:
    """View a tensor as numba's array of the same memory; bfloat16, which numba lacks, as int16."""
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.view(torch.int16)
    if _SIMULATED:
        return tensor.numpy()
    if not tensor.is_cuda:
        raise ValueError(f"the kernels run on CUDA tensors, not on {tensor.device}")
    return cuda.as_cuda_array(tensor, sync=False)  # both work on one stream: nothing to wait for


def current_stream(device: torch.device) -> Any:
    """Give torch's current stream of a device as numba's."""
    if _SIMULATED:
        return 0
    return cuda.external_stream(torch.cuda.current_stream(device).cuda_stream)
