"""The numerics of the embedding update, one operation a file.

Each function here is the definition in plain torch, for CPU and CUDA tensors, float32 and float64. A fast
path has the same signature and is measured against it.

- :func:`count_rows`: how often each row of a table occurs in a batch
- :func:`gather_rows`: the rows of a table that a batch asks for
- :func:`sum_rows`: the gradient of a table, summed per row in a fixed order
- :func:`clip_rows`: adaptive column-wise clipping (CowClip, arXiv 2204.06240)
- :func:`add_l2`, :func:`adam_`, :func:`cowclip_adam_`: the update of a whole table
"""

if __name__ != "stampede.kernels":
    raise ImportError("import stampede.kernels, not kernels")

from stampede.kernels.clip import clip_rows
from stampede.kernels.count import count_rows
from stampede.kernels.gather import gather_rows
from stampede.kernels.reduce import sum_rows
from stampede.kernels.update import adam_, add_l2, cowclip_adam_

__all__ = ["adam_", "add_l2", "clip_rows", "count_rows", "cowclip_adam_", "gather_rows", "sum_rows"]
