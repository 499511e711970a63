"""A split as tensors on the device, and its batches: no Python per row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
from torch import Tensor

from stampede import DatasetError, InputError
from stampede.pipeline.dataset import LABEL, Dataset, Split
from stampede.training.embedding import check_ids


@dataclass(frozen=True)
class Batch:
    """Rows of a split.

    Attributes
    ----------
    dense:
        float32 [B, n_dense].
    ids:
        int32 [B, F].
    labels:
        int8 [B].
    """

    dense: Tensor
    ids: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return self.labels.shape[0]

    def __getitem__(self, rows: slice | Tensor) -> Batch:
        """Return some of the rows: a slice, or indices int64 [B]."""
        return Batch(self.dense[rows], self.ids[rows], self.labels[rows])

    def to(self, device: torch.device) -> Batch:
        """Return the rows on a device."""
        return Batch(self.dense.to(device), self.ids.to(device), self.labels.to(device))

    def split(self, rows: int) -> Iterator[Batch]:
        """Yield the rows in order, so many at a time; the last piece may be shorter."""
        for start in range(0, len(self), rows):
            yield self[start : start + rows]


class DeviceLoader:
    """Holds a whole split on the device and gives its batches, shuffled there or in order.

    The last batch of an epoch is shorter where the batch size does not divide the split; no row is dropped.

    Parameters
    ----------
    dataset, split:
        What to load.
    batch_size:
        Rows a batch; more than the split has gives one batch.
    device:
        Where the tensors lie.

    Raises
    ------
    DatasetError
        The split is not there, or an id is out of its field's range.
    """

    def __init__(
        self, dataset: Dataset, split: Split, *, batch_size: int, device: torch.device | str = "cpu"
    ) -> None:
        self.batch_size = batch_size
        self.data = _load(dataset, split, torch.device(device))

    @property
    def rows(self) -> int:
        """Rows of the split."""
        return len(self.data)

    def __len__(self) -> int:
        """Batches of an epoch."""
        return -(-self.rows // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches in row order."""
        return self.data.split(self.batch_size)

    def shuffled(self, *, seed: int, epoch: int) -> Iterator[Batch]:
        """Yield the batches of an epoch in an order that depends on the seed and the epoch alone."""
        order = epoch_order(self.rows, seed=seed, epoch=epoch, device=self.data.ids.device)
        for chosen in torch.split(order, self.batch_size):
            yield self.data[chosen]


def epoch_order(rows: int, *, seed: int, epoch: int, device: torch.device) -> Tensor:
    """Give a permutation of the rows, int64 [rows], by the device's own generator."""
    mixed = np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)[0]
    generator = torch.Generator(device=device).manual_seed(int(mixed >> 1))
    return torch.randperm(rows, generator=generator, device=device)


def batch_of(frame: pl.DataFrame, *, dense_columns: Sequence[str], fields: Sequence[str]) -> Batch:
    """Turn encoded rows into tensors on the CPU; without a ``label`` column the labels are 0."""
    ids = np.empty((frame.height, len(fields)), np.int32)
    for column, name in enumerate(fields):
        ids[:, column] = frame[name].to_numpy()
    dense = np.empty((frame.height, len(dense_columns)), np.float32)
    for column, name in enumerate(dense_columns):
        dense[:, column] = frame[name].to_numpy()
    labels = np.zeros(frame.height, np.int8)
    if LABEL in frame.columns:
        labels[:] = frame[LABEL].to_numpy()
    return Batch(torch.from_numpy(dense), torch.from_numpy(ids), torch.from_numpy(labels))


def _load(dataset: Dataset, split: Split, device: torch.device) -> Batch:
    frame = dataset.read(split, [LABEL, *dataset.dense_columns, *dataset.fields])
    batch = batch_of(frame, dense_columns=dataset.dense_columns, fields=dataset.fields)
    if not bool(((batch.labels == 0) | (batch.labels == 1)).all()):
        raise DatasetError(f"{dataset.path / split} has labels other than 0 and 1: prepare the dataset again")
    if not bool(torch.isfinite(batch.dense).all()):
        raise DatasetError(f"{dataset.path / split} has dense values that are not finite: prepare it again")
    try:
        check_ids(batch.ids, list(dataset.sizes.values()), names=dataset.fields)
    except InputError as error:
        raise DatasetError(f"{dataset.path}, split {split}: {error}") from error
    return batch.to(device)
