"""The numerics of the embedding update, one operation a file.

The definitions, in plain torch for any device and dtype (:mod:`stampede.kernels.reference`):

- :func:`count_rows`: how often each row of a table occurs in a batch
- :func:`gather_rows`: the rows of a table that a batch asks for
- :func:`sum_rows`: the gradient of a table, summed per row in a fixed order
- :func:`clip_rows`: adaptive column-wise clipping (CowClip, arXiv 2204.06240); :func:`clip_columns` and
  :func:`clip_fields`: clips to compare it with
- :func:`add_l2`, :func:`adam_`, :func:`cowclip_adam_`: the update of a whole table

What a training step runs, by numba on a CPU and by CUDA on a GPU, with the results of the above:

- :func:`lookup`: a batch in the tables of embeddings and first-order weights
- :func:`make_accumulator`: counts and gradient sums of a batch's rows, piece by piece
- :func:`update_table`: L2, clip and Adam on every row, in one pass; :func:`update_entries` on a batch's rows
- :func:`update_values`: L2 and Adam on dense weights
- :func:`mlp`: linear layers with ReLU; :func:`pairwise_sum`: the products of a factorization machine
- :func:`empty`, :func:`keep_freed_memory`: memory of huge pages, and memory that is kept
"""

if __name__ != "stampede.kernels":
    raise ImportError("import stampede.kernels, not kernels")

from stampede.kernels.accumulate import RowAccumulator, make_accumulator
from stampede.kernels.device import cuda_kernels_missing
from stampede.kernels.lookup import lookup
from stampede.kernels.memory import empty, keep_freed_memory
from stampede.kernels.mlp import mlp
from stampede.kernels.pairwise import pairwise_sum
from stampede.kernels.reference import (
    adam_,
    add_l2,
    clip_rows,
    count_rows,
    cowclip_adam_,
    gather_rows,
    sum_rows,
)
from stampede.kernels.reference.clip import clip_all, clip_columns, clip_fields, field_norms
from stampede.kernels.reference.update import apply_adam_, corrected_rate
from stampede.kernels.rows import RowGradients, RowIndex
from stampede.kernels.update import update_entries, update_table, update_values

__all__ = [
    "RowAccumulator",
    "RowGradients",
    "RowIndex",
    "adam_",
    "add_l2",
    "apply_adam_",
    "clip_all",
    "clip_columns",
    "clip_fields",
    "clip_rows",
    "corrected_rate",
    "count_rows",
    "cowclip_adam_",
    "cuda_kernels_missing",
    "empty",
    "field_norms",
    "gather_rows",
    "keep_freed_memory",
    "lookup",
    "make_accumulator",
    "mlp",
    "pairwise_sum",
    "sum_rows",
    "update_entries",
    "update_table",
    "update_values",
]
