"""CowClip alone, on the dense gradient of a table, by a numba-cuda kernel."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import torch
from numba import float32
from torch import Tensor

from stampede.kernels.cuda.numba_arrays import as_array, cuda, current_stream, grid

LANES = 8  # threads of a row
ROWS = 16  # rows of a block


def clip_rows(
    grads: Tensor, weights: Tensor, *, counts: Tensor, ratio: float = 1.0, zeta: float = 1e-5
) -> tuple[Tensor, Tensor]:
    """Bound the gradient of each row: :func:`stampede.kernels.clip_rows` in one pass, float32 on CUDA.

    Parameters
    ----------
    grads, weights:
        float32 ``[rows, d]``, contiguous; the gradient with its L2 term.
    counts:
        Integers ``[rows]``: how often each row occurs in the batch. 0 is read as 1.

    Returns
    -------
    tuple[Tensor, Tensor]
        The clipped gradient ``[rows, d]``, a new tensor, and bool ``[rows]``: which rows were clipped.

    Raises
    ------
    ValueError
        The shapes or the dtype do not fit.
    """
    if grads.dim() != 2 or grads.shape != weights.shape or counts.shape != grads.shape[:1]:
        raise ValueError(
            "grads [rows, d], weights [rows, d] and counts [rows] are wanted, not "
            f"{list(grads.shape)}, {list(weights.shape)} and {list(counts.shape)}"
        )
    if grads.dtype != torch.float32 or weights.dtype != torch.float32:
        raise ValueError(f"float32 is wanted, not {grads.dtype} and {weights.dtype}")
    out = torch.empty_like(grads)
    clipped = torch.zeros(len(grads), dtype=torch.bool, device=grads.device)
    if grads.numel() > 0:
        blocks = grid(-(-len(grads) // ROWS))
        floor = ratio * math.sqrt(grads.shape[1]) * zeta
        arrays = [as_array(tensor) for tensor in (grads, weights, counts, out, clipped.view(torch.uint8))]
        with torch.cuda.device(grads.device if grads.is_cuda else -1):  # -1: none, in the simulator
            _kernel()[blocks, (LANES, ROWS), current_stream(grads.device)](
                *arrays, np.float32(ratio), np.float32(floor)
            )
    return out, clipped


def clip_kernel(
    grads: Any, weights: Any, counts: Any, out: Any, clipped: Any, ratio: Any, floor: Any
) -> None:
    """Clip rows: the kernel. A row of a block's threads takes a row and adds its squares in shared memory."""
    weight_squares = cuda.shared.array((ROWS, LANES), float32)
    grad_squares = cuda.shared.array((ROWS, LANES), float32)
    lane, place = cuda.threadIdx.x, cuda.threadIdx.y
    for first in range(cuda.blockIdx.x * ROWS, grads.shape[0], cuda.gridDim.x * ROWS):
        row = first + place
        weight_square = grad_square = np.float32(0)
        if row < grads.shape[0]:
            for k in range(lane, grads.shape[1], LANES):
                weight_square += weights[row, k] * weights[row, k]
                grad_square += grads[row, k] * grads[row, k]
        weight_squares[place, lane] = weight_square
        grad_squares[place, lane] = grad_square
        cuda.syncthreads()
        weight_square = grad_square = np.float32(0)
        for i in range(LANES):  # every thread of a row adds all, in the same order
            weight_square += weight_squares[place, i]
            grad_square += grad_squares[place, i]
        cuda.syncthreads()
        if row < grads.shape[0]:
            limit = np.float32(math.sqrt(weight_square))
            if limit < floor:  # a NaN norm stays, and clips nothing
                limit = floor
            threshold = limit * np.float32(max(counts[row], 1)) * ratio
            norm = np.float32(math.sqrt(grad_square))
            is_clipped = norm > threshold
            scale = threshold / norm if is_clipped else np.float32(1)
            for k in range(lane, grads.shape[1], LANES):
                out[row, k] = grads[row, k] * scale if is_clipped else grads[row, k]
            if lane == 0:
                clipped[row] = is_clipped


@cache
def _kernel() -> Any:
    return cuda.jit(clip_kernel)
