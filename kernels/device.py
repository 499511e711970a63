"""Which fast paths there are for tensors on a device."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from stampede import DeviceError


def on_cpu(*tensors: Tensor) -> bool:
    """Whether the numba kernels take these tensors: on a CPU, contiguous, all float32 or all float64."""
    dtype = tensors[0].dtype
    return dtype in (torch.float32, torch.float64) and all(
        tensor.device.type == "cpu" and tensor.dtype == dtype and tensor.is_contiguous() for tensor in tensors
    )


def on_cuda(*tensors: Tensor) -> bool:
    """Whether the CUDA kernels take these tensors: on a GPU, contiguous float32, and their packages there."""
    return all(
        tensor.is_cuda and tensor.dtype == torch.float32 and tensor.is_contiguous() for tensor in tensors
    ) and (cuda_kernels_missing() is None)


@cache
def cuda_kernels_missing() -> str | None:
    """Say why the CUDA kernels cannot run here, in a line; None where they can."""
    from stampede.kernels.cuda.launch import import_gpu_package

    for package in ("cupy", "numba_cuda"):
        try:
            import_gpu_package(package)
        except DeviceError as error:
            return f"{error}; until then the tables are updated by plain torch, which is slow"
    return None
