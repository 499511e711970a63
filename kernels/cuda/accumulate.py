"""Counts and gradient sums of a batch's rows, in a fixed order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate as running_sums

import numpy as np
import torch
from torch import Tensor

from stampede.kernels.cuda.lanes import Lanes
from stampede.kernels.cuda.launch import Kernel, launch
from stampede.kernels.rows import RowGradients, RowIndex

TILE = 2048
"""Sorted positions of a block, as in ``reduce.cu``."""

_SUM = Kernel("reduce", "sum_tiles")
_FOLD = Kernel("reduce", "fold_tiles")
_CLEAR = Kernel("reduce", "clear_slots")


class CudaRowAccumulator:
    """Sorts the occurrences of a batch by row, stably, and sums each run of one row.

    The entry of a row is the sorted position of its first occurrence, so a batch of B rows has B * F entries
    and most lie unused. The order in which a row's gradients are added follows from the batch alone: the same
    bits on every run, whatever the pieces that the batch came in. There are no atomics on floats, nothing
    waits for the host, and no size depends on the data.

    The sort is torch's. For one segment, ``aten/src/ATen/native/cuda/SortStable.cu`` queues a kernel that
    numbers the places and cub's radix sort of pairs, with temporaries from torch's caching allocator and no
    wait: it can be captured in a graph, and radix sort is stable.

    A batch that comes whole, in one piece of ``batch_rows`` rows, is summed from where it lies: its gradients
    must stay unchanged until :meth:`finish`. Smaller pieces are copied.

    Parameters
    ----------
    sizes:
        Rows of each field; below 2^31 in all.
    dim:
        Values of a row, 1 to 128.
    batch_rows:
        Rows of a whole batch, at most; times the fields below 2^31.
    linear:
        Whether there is a first-order table, whose gradients come along.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        dim: int,
        *,
        batch_rows: int,
        linear: bool,
        device: torch.device | str = "cuda",
    ) -> None:
        self._device = torch.device(device)
        self._fields, self._dim, self._batch_rows = len(sizes), dim, batch_rows
        capacity = batch_rows * self._fields
        if capacity >= 2**31 or sum(sizes) >= 2**31:
            raise ValueError(
                f"{sum(sizes)} rows, and {batch_rows} batch rows with {self._fields} fields: "
                "both must stay below 2^31"
            )
        Lanes.of(dim)  # raises for a dim that is too large
        tiles = -(-capacity // TILE)

        def floats(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=torch.float32, device=self._device)

        def integers(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=self._device)

        starts = [0, *running_sums(sizes)][:-1]
        self._offsets = torch.tensor(starts, dtype=torch.int64, device=self._device)  # [F]
        self._keys = integers(capacity)  # [B * F]: the row of each occurrence
        self._sorted_keys = integers(capacity)
        self._places = integers(capacity, dtype=torch.int64)  # the occurrence at each sorted position
        self._grads: Tensor | None = None  # [B, F, d]: pieces, once there is one
        self._linear_grads = floats(batch_rows) if linear else None
        self._rows = integers(capacity, dtype=torch.int64)
        self._counts = integers(capacity).zero_()
        self._slots = integers(sum(sizes)).fill_(-1)
        self._sums = floats(capacity, dim)
        self._linear_sums = floats(capacity, 1) if linear else None
        self._heads, self._tails = floats(tiles, dim), floats(tiles, dim)
        self._linear_heads, self._linear_tails = floats(tiles), floats(tiles)
        self._head_lengths, self._tail_starts = integers(tiles), integers(tiles)
        self._added = 0  # rows of the batch so far
        self._whole: tuple[Tensor, Tensor | None] | None = None
        self._finished = 0  # entries that hold a batch

    def add(self, ids: Tensor, grads: Tensor, linear_grads: Tensor | None = None) -> None:
        """Take in a piece.

        Parameters
        ----------
        ids:
            int32 or int64 ``[b, F]``, in their fields' ranges.
        grads:
            float32 ``[b, F, d]``.
        linear_grads:
            float32 ``[b]``: the gradient of a row's first-order sum, which is that of each of its F weights.

        Raises
        ------
        ValueError
            The shapes do not fit, or the batch is larger than announced.
        RuntimeError
            The last batch has not been cleared.
        """
        self._check(ids, grads, linear_grads)
        batch = len(ids)
        rows = slice(self._added, self._added + batch)
        torch.add(ids, self._offsets, out=self._keys.view(self._batch_rows, self._fields)[rows])
        if batch == self._batch_rows:
            self._whole = (grads.contiguous(), None if linear_grads is None else linear_grads.contiguous())
        else:
            if self._grads is None:
                shape = (self._batch_rows, self._fields, self._dim)
                self._grads = torch.empty(shape, dtype=torch.float32, device=self._device)
            self._grads[rows] = grads
            if self._linear_grads is not None and linear_grads is not None:
                self._linear_grads[rows] = linear_grads
        self._added += batch

    def finish(self) -> tuple[RowGradients, RowGradients | None]:
        """Give the sums of what was added, of one index; they are valid until :meth:`clear`."""
        total = self._added * self._fields  # N
        tiles = -(-total // TILE)
        grads, linear_grads = self._whole or (self._grads, self._linear_grads)
        keys, places = self._sorted_keys[:total], self._places[:total]
        torch.sort(self._keys[:total], stable=True, out=(keys, places))
        lanes = Lanes.of(self._dim, grads, self._sums, self._heads, self._tails)
        partials = (self._heads, self._tails, self._linear_heads, self._linear_tails)
        tile_runs = (self._head_lengths, self._tail_starts)
        entries = (self._rows, self._counts, self._slots, self._sums, self._linear_sums)
        launch(
            _SUM,
            *(
                keys,
                places,
                grads,
                linear_grads,
                np.int32(total),
                np.int32(self._fields),
                np.int32(self._dim),
            ),
            *lanes.arguments,
            *entries,
            *partials,
            *tile_runs,
            blocks=tiles,
            device=self._device,
        )
        launch(
            _FOLD,
            *(keys, *partials, *tile_runs, np.int32(total), np.int32(tiles), np.int32(self._dim)),
            *entries,
            blocks=tiles if tiles > 1 else 0,
            device=self._device,
        )
        self._finished = total
        index = RowIndex(rows=self._rows[:total], counts=self._counts[:total], slots=self._slots)
        linear = None if self._linear_sums is None else RowGradients(index, self._linear_sums[:total])
        return RowGradients(index, self._sums[:total]), linear

    def clear(self) -> None:
        """Start the next batch: reset the slots of this one's rows, at a cost of its entries."""
        launch(
            _CLEAR,
            *(self._rows, self._counts, self._slots, np.int32(self._finished)),
            blocks=-(-self._finished // _CLEAR.threads),
            device=self._device,
        )
        self._added = self._finished = 0
        self._whole = None

    def _check(self, ids: Tensor, grads: Tensor, linear_grads: Tensor | None) -> None:
        batch = len(ids)
        if self._finished:
            raise RuntimeError("the last batch was not cleared")
        if self._added + batch > self._batch_rows:
            raise ValueError(
                f"a batch of {self._added + batch} rows, where {self._batch_rows} were announced"
            )
        if ids.shape != (batch, self._fields) or grads.shape != (batch, self._fields, self._dim):
            raise ValueError(
                f"ids [b, {self._fields}] and grads [b, {self._fields}, {self._dim}] are wanted, not "
                f"{list(ids.shape)} and {list(grads.shape)}"
            )
        if (linear_grads is None) != (self._linear_sums is None):
            raise ValueError("linear_grads are wanted where there is a first-order table, and only there")
        if linear_grads is not None and linear_grads.shape != (batch,):
            raise ValueError(f"linear_grads [{batch}] are wanted, not {list(linear_grads.shape)}")
