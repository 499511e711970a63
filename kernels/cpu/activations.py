"""The way back through ReLU and bias, in one pass."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stampede.kernels.cpu.team import TASKS, TYPES, Kernel, array_at, float32_of, next_task

_TASK_ROWS = 64
_float32 = TYPES[torch.float32]


def relu_bias_backward_(grads: Tensor, outputs: Tensor) -> Tensor:
    """Give the gradients before ReLU, in place: 0 where ``outputs`` is 0; and that of the bias, their sum.

    Parameters
    ----------
    grads, outputs:
        ``[B, n]``, contiguous, both float32 or both bfloat16; ``grads`` is written. It is one array that is
        read and written because two that may overlap are not vectorised.

    Returns
    -------
    Tensor
        float32 ``[n]``: the sum over rows, added up in a fixed order.
    """
    rows, width = grads.shape
    tasks = -(-rows // _TASK_ROWS)
    partial = torch.zeros(tasks, width, dtype=torch.float32)
    _kernel(grads.dtype)(tasks, rows, width, grads, outputs, partial)
    return partial.sum(0)


@cache
def _kernel(dtype: torch.dtype) -> Kernel:
    value = TYPES[dtype]  # of bfloat16, its bits
    is_bfloat16 = dtype == torch.bfloat16

    def kernel(a: Any) -> None:
        rows, width = a[2], a[3]
        grads = array_at(a[4], rows * width, value)
        outputs = array_at(a[5], rows * width, value)
        partial = array_at(a[6], a[TASKS] * width, _float32)
        while True:
            task = next_task(a)
            if task >= a[TASKS]:
                break
            total = partial[task * width : (task + 1) * width]
            for row in range(task * _TASK_ROWS, min(rows, (task + 1) * _TASK_ROWS)):
                gradient = grads[row * width : (row + 1) * width]
                output = outputs[row * width : (row + 1) * width]
                for k in range(width):
                    if is_bfloat16:
                        # an output is never below 0, so it is 0, of either sign, or above
                        bits = gradient[k] if (output[k] & 0x7FFF) != 0 else value(0)
                        gradient[k] = bits
                        total[k] += float32_of(np.uint32(bits) << np.uint32(16))
                    else:
                        kept = value(0) if output[k] <= 0 else gradient[k]
                        gradient[k] = kept
                        total[k] += kept

    return Kernel(kernel)
