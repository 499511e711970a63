"""Reads and checks a split, a row group at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl
import torch

from stampede import DatasetError, InputError
from stampede.pipeline.dataset import LABEL, Dataset, Split, collect_rows
from stampede.training.batch import Batch, batch_of
from stampede.training.embedding import check_ids

IdTables = Sequence[npt.NDArray[np.int32]]
"""For each field int32 [size]: an id in place of each of a dataset's, for a model that knows fewer."""

ROWS_PER_GROUP: Final = 1 << 17
"""Rows of a row group in the parts of a dataset; others are read as well, with some decoded twice."""


@dataclass(frozen=True)
class RowGroup:
    """Rows of a part that are read together: so many from number ``first`` on."""

    part: Path
    first: int
    rows: int


class SplitReader:
    """Reads and checks a split, a row group at a time.

    Reading one decodes it alone: polars hands the slice down to the parquet reader, and keeps the file's
    metadata with the scan, which would take longer to parse than a group to decode in a file of many.

    Parameters
    ----------
    dataset, split:
        What to read.
    group_rows:
        Rows of a row group in the parts; the last one of a part is shorter.
    ids:
        For each field the id that rows get in place of each of the dataset's; None for these.

    Raises
    ------
    DatasetError
        The dataset has no such split.
    """

    def __init__(
        self,
        dataset: Dataset,
        split: Split,
        *,
        group_rows: int = ROWS_PER_GROUP,
        ids: IdTables | None = None,
    ) -> None:
        dataset.scan(split)  # says which splits there are where this one is not
        self.dataset = dataset
        self.split = split
        parts = {dataset.path / part.path: part.rows for part in dataset.manifest.splits[split].files}
        self.groups = tuple(
            RowGroup(part, first, min(group_rows, rows - first))
            for part, rows in parts.items()
            for first in range(0, rows, group_rows)
        )
        """In row order."""
        self.rows = sum(parts.values())
        self.n_dense, self.n_fields = len(dataset.dense_columns), len(dataset.fields)
        columns = [LABEL, *dataset.dense_columns, *dataset.fields]
        self._scans = {part: pl.scan_parquet(part, glob=False).select(columns) for part in parts}
        self._sizes = np.array(list(dataset.sizes.values()), np.uint32)
        self._ids = ids

    def row_bytes(self, dense_dtype: torch.dtype = torch.float32) -> int:
        """Return the bytes that a row takes as tensors."""
        return 4 * self.n_fields + dense_dtype.itemsize * self.n_dense + 1

    def empty(
        self,
        rows: int,
        *,
        dense_dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        pinned: bool = False,
    ) -> Batch:
        """Return room for rows of this split."""
        return Batch.empty(
            rows,
            n_dense=self.n_dense,
            n_fields=self.n_fields,
            dense_dtype=dense_dtype,
            device=device,
            pinned=pinned,
        )

    def read(self, group: RowGroup) -> Batch:
        """Return the rows of a group on the CPU, dense float32.

        Raises
        ------
        DatasetError
            The part is damaged, or a label is not 0 or 1, a dense value not finite, an id out of its range.
        """
        where = f"{group.part}, split {self.split}, rows from {group.first:,}"
        rows_of_group = self._scans[group.part].slice(group.first, group.rows)
        frame = collect_rows(rows_of_group, subject=f"{where}:")
        if frame.height != group.rows:
            raise DatasetError(f"{where}: {frame.height} rows of {group.rows}: prepare the dataset again")
        rows = batch_of(frame, dense_columns=self.dataset.dense_columns, fields=self.dataset.fields)
        self._check(rows, where)
        if self._ids is not None:
            for column, table in zip(rows.ids.numpy().T, self._ids, strict=True):
                column[:] = table[column]
        return rows

    def _check(self, rows: Batch, where: str) -> None:
        # numpy: from a thread other than the main one, torch would start another team of OpenMP threads
        if bool((rows.labels.numpy().view(np.uint8) > 1).any()):
            raise DatasetError(f"{where}: labels other than 0 and 1: prepare the dataset again")
        if not bool(np.isfinite(rows.dense.numpy()).all()):
            raise DatasetError(f"{where}: dense values that are not finite: prepare the dataset again")
        if bool((rows.ids.numpy().view(np.uint32) >= self._sizes).any()):  # a negative id is a huge one
            try:
                check_ids(rows.ids, self._sizes.tolist(), names=self.dataset.fields)
            except InputError as error:
                raise DatasetError(f"{where}: {error}") from error
