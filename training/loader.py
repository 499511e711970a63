"""A split as tensors on the device, and its batches: no Python per row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
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
        for start in range(0, self.rows, self.batch_size):
            end = start + self.batch_size
            yield Batch(self.data.dense[start:end], self.data.ids[start:end], self.data.labels[start:end])

    def shuffled(self, *, seed: int, epoch: int) -> Iterator[Batch]:
        """Yield the batches of an epoch in an order that depends on the seed and the epoch alone."""
        order = epoch_order(self.rows, seed=seed, epoch=epoch, device=self.data.ids.device)
        for chosen in torch.split(order, self.batch_size):
            yield Batch(self.data.dense[chosen], self.data.ids[chosen], self.data.labels[chosen])


def epoch_order(rows: int, *, seed: int, epoch: int, device: torch.device) -> Tensor:
    """Give a permutation of the rows, int64 [rows], by the device's own generator."""
    mixed = np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)[0]
    generator = torch.Generator(device=device).manual_seed(int(mixed >> 1))
    return torch.randperm(rows, generator=generator, device=device)


def _load(dataset: Dataset, split: Split, device: torch.device) -> Batch:
    frame = dataset.scan(split).select(LABEL, *dataset.dense_columns, *dataset.fields)
    table = frame.collect(engine="streaming")
    ids = np.empty((table.height, len(dataset.fields)), np.int32)
    for column, name in enumerate(dataset.fields):
        ids[:, column] = table[name].to_numpy()
    dense = np.empty((table.height, len(dataset.dense_columns)), np.float32)
    for column, name in enumerate(dataset.dense_columns):
        dense[:, column] = table[name].to_numpy()
    labels = torch.from_numpy(table[LABEL].to_numpy().copy())
    batch = Batch(torch.from_numpy(dense), torch.from_numpy(ids), labels)
    try:
        check_ids(batch.ids, list(dataset.sizes.values()), names=dataset.fields)
    except InputError as error:
        raise DatasetError(f"{dataset.path}, split {split}: {error}") from error
    return Batch(batch.dense.to(device), batch.ids.to(device), batch.labels.to(device))
