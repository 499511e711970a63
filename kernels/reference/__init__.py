"""The definition of each operation in plain torch, one a file, for CPU and CUDA tensors, float32 and float64.

Every fast path has the result of its function here, and a test that holds one to the other.
"""

from stampede.kernels.reference.clip import clip_rows
from stampede.kernels.reference.count import count_rows
from stampede.kernels.reference.gather import gather_rows
from stampede.kernels.reference.reduce import sum_rows
from stampede.kernels.reference.update import adam_, add_l2, cowclip_adam_

__all__ = ["adam_", "add_l2", "clip_rows", "count_rows", "cowclip_adam_", "gather_rows", "sum_rows"]
