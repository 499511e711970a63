"""The gradient of a table in compact form: an entry for each row that a batch has, none for the others."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class RowIndex:
    """Which rows of a table a batch has, and how often.

    Entries may lie unused, with a count of 0, so that no size depends on the data. A batch's tables of one
    set of sizes share an index.

    Attributes
    ----------
    rows:
        int64 ``[E]``: the row of each entry; every row has one entry at most. Undefined in unused entries.
    counts:
        int32 ``[E]``: how often the row occurs in the batch; 0 in unused entries.
    slots:
        int32 ``[num_rows]``: the entry of each row, -1 where the batch does not have the row.
    """

    rows: Tensor
    counts: Tensor
    slots: Tensor

    def dense_counts(self) -> Tensor:
        """Give the counts of all rows, int32 ``[num_rows]``; 0 for those that the batch does not have."""
        used = self.counts > 0
        return self.counts.new_zeros(self.slots.shape).index_put_((self.rows[used],), self.counts[used])


@dataclass(frozen=True)
class RowGradients:
    """The summed gradient of each row that a batch has.

    Attributes
    ----------
    index:
        The rows.
    sums:
        ``[E, d]``: the gradient of each entry, summed over its row's occurrences; undefined where unused.
    """

    index: RowIndex
    sums: Tensor

    def to_dense(self) -> Tensor:
        """Give the gradient of the whole table, ``[num_rows, d]``; 0 for rows the batch does not have."""
        used = self.index.counts > 0
        out = self.sums.new_zeros(self.index.slots.shape[0], self.sums.shape[1])
        return out.index_put_((self.index.rows[used],), self.sums[used])

    @classmethod
    def of_batch(cls, rows: Tensor, grads: Tensor, *, num_rows: int) -> RowGradients:
        """Sum the gradients of a batch by plain torch: the reference of the fast paths.

        Parameters
        ----------
        rows:
            Integers ``[N]`` in ``[0, num_rows)``: the row of each occurrence.
        grads:
            ``[N, d]``: the gradient of each occurrence.
        """
        unique, inverse, counts = torch.unique(rows, return_inverse=True, return_counts=True)
        sums = grads.new_zeros(len(unique), grads.shape[1]).index_add_(0, inverse, grads)
        slots = torch.full((num_rows,), -1, dtype=torch.int32, device=rows.device)
        slots[unique] = torch.arange(len(unique), dtype=torch.int32, device=rows.device)
        return cls(RowIndex(unique.to(torch.int64), counts.to(torch.int32), slots), sums)
