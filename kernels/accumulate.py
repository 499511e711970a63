"""Counts and gradient sums of a batch's rows, over the pieces that the batch is worked on in."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate as running_sums
from typing import Protocol

import torch
from torch import Tensor

from stampede.kernels.device import cuda_kernels_missing
from stampede.kernels.memory import empty
from stampede.kernels.rows import RowGradients, RowIndex

Sums = tuple[RowGradients, RowGradients | None]
"""The gradients of a table and of the first-order table beside it, of one index."""


class RowAccumulator(Protocol):
    """Takes the gradients of the pieces of a batch, and gives their sums per row once it is whole."""

    def add(self, ids: Tensor, grads: Tensor, linear_grads: Tensor | None = None) -> None:
        """Take in a piece.

        Parameters
        ----------
        ids:
            int32 or int64 ``[b, F]``, in their fields' ranges.
        grads:
            ``[b, F, d]``.
        linear_grads:
            ``[b]``: the gradient of a row's first-order sum, which is that of each of its F weights.
        """

    def finish(self) -> Sums:
        """Give the sums of what was added; they are valid until :meth:`clear`."""

    def clear(self) -> None:
        """Start the next batch."""


def make_accumulator(
    sizes: Sequence[int],
    dim: int,
    *,
    batch_rows: int,
    linear: bool,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> RowAccumulator:
    """Make the accumulator for tables on a device.

    Parameters
    ----------
    sizes:
        Rows of each field.
    dim:
        Values of a row.
    batch_rows:
        Rows of a whole batch, at most.
    linear:
        Whether there is a first-order table.
    """
    device = torch.device(device)
    if device.type == "cuda" and dtype == torch.float32 and cuda_kernels_missing() is None:
        from stampede.kernels import cuda

        return cuda.CudaRowAccumulator(sizes, dim, batch_rows=batch_rows, linear=linear, device=device)
    if device.type == "cpu" and dtype in (torch.float32, torch.float64):
        return CpuRowAccumulator(sizes, dim, batch_rows=batch_rows, linear=linear, dtype=dtype)
    return PlainRowAccumulator(sizes, linear=linear, device=device)


class PlainRowAccumulator:
    """The definition: keeps the pieces and sums them by plain torch."""

    def __init__(self, sizes: Sequence[int], *, linear: bool, device: torch.device | str = "cpu") -> None:
        starts = [0, *running_sums(sizes)]
        self._num_rows = starts[-1]
        self._offsets = torch.tensor(starts[:-1], device=device)
        self._linear = linear
        self._pieces: list[tuple[Tensor, Tensor, Tensor | None]] = []

    def add(self, ids: Tensor, grads: Tensor, linear_grads: Tensor | None = None) -> None:
        """Take in a piece."""
        self._pieces.append((ids + self._offsets, grads, linear_grads))

    def finish(self) -> Sums:
        """Give the sums."""
        rows = torch.cat([rows.reshape(-1) for rows, _, _ in self._pieces])  # [N]
        grads = torch.cat([grads.flatten(0, 1) for _, grads, _ in self._pieces])  # [N, d]
        summed = RowGradients.of_batch(rows, grads, num_rows=self._num_rows)
        if not self._linear:
            return summed, None
        fields = len(self._offsets)
        linear = [g.repeat_interleave(fields).unsqueeze(1) for _, _, g in self._pieces if g is not None]
        return summed, RowGradients.of_batch(rows, torch.cat(linear), num_rows=self._num_rows)

    def clear(self) -> None:
        """Start the next batch."""
        self._pieces = []


class CpuRowAccumulator:
    """Adds each piece at once into the entries of its rows.

    A field has as many entries as a batch can have different ids of it; their memory is taken up as it is
    used. A row's gradients are added in batch order, whatever the pieces and the number of threads.
    """

    def __init__(
        self, sizes: Sequence[int], dim: int, *, batch_rows: int, linear: bool, dtype: torch.dtype
    ) -> None:
        capacities = [min(size, batch_rows) for size in sizes]
        self._offsets = torch.tensor([0, *running_sums(sizes)])  # int64 [F + 1]
        self._batch_rows, self._rows_added = batch_rows, 0
        self._starts = torch.tensor([0, *running_sums(capacities)][:-1])
        self._used = torch.zeros(len(capacities), dtype=torch.int64)
        entries = sum(capacities)
        self._index = RowIndex(
            rows=empty((entries,), dtype=torch.int64),
            counts=empty((entries,), dtype=torch.int32).zero_(),
            slots=empty((sum(sizes),), dtype=torch.int32).fill_(-1),
        )
        self._sums = empty((entries, dim), dtype=dtype)
        self._linear_sums = empty((entries, 1), dtype=dtype) if linear else None

    def add(self, ids: Tensor, grads: Tensor, linear_grads: Tensor | None = None) -> None:
        """Take in a piece."""
        from stampede.kernels.cpu.accumulate import accumulate

        fields, dim = len(self._used), self._sums.shape[1]
        shapes = (tuple(ids.shape[1:]), tuple(grads.shape))
        if shapes != ((fields,), (len(ids), fields, dim)) or grads.dtype != self._sums.dtype:
            raise ValueError(
                f"ids [b, {fields}] and grads [b, {fields}, {dim}] of {self._sums.dtype} are wanted, "
                f"not {list(ids.shape)} and {list(grads.shape)} of {grads.dtype}"
            )
        if ids.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"ids of int32 or int64 are wanted, not {ids.dtype}")
        if self._linear_sums is not None and (linear_grads is None or linear_grads.shape != ids.shape[:1]):
            raise ValueError("the gradients [b] of the first-order sums are wanted")
        if linear_grads is not None:
            linear_grads = linear_grads.to(grads.dtype)
        self._rows_added += len(ids)
        if self._rows_added > self._batch_rows:
            raise ValueError(f"a batch of {self._rows_added} rows, where {self._batch_rows} were announced")
        if grads.stride(2) != 1:
            grads = grads.contiguous()
        accumulate(
            ids.contiguous(),
            grads,
            None if linear_grads is None else linear_grads.contiguous(),
            offsets=self._offsets,
            starts=self._starts,
            used=self._used,
            rows=self._index.rows,
            counts=self._index.counts,
            slots=self._index.slots,
            sums=self._sums,
            linear_sums=self._linear_sums,
        )

    def finish(self) -> Sums:
        """Give the sums."""
        linear = None if self._linear_sums is None else RowGradients(self._index, self._linear_sums)
        return RowGradients(self._index, self._sums), linear

    def clear(self) -> None:
        """Start the next batch."""
        from stampede.kernels.cpu.accumulate import clear_slots

        self._rows_added = 0
        clear_slots(self._starts, self._used, self._index.rows, self._index.counts, self._index.slots)
