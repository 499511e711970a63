"""A split that lies on the device as a whole, and its batches: no Python per row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from stampede.kernels import cuda_kernels_missing
from stampede.pipeline.dataset import Dataset, Split
from stampede.training.batch import Batch
from stampede.training.order import check_first, epoch_order
from stampede.training.rowgroups import IdTables, SplitReader


class DeviceLoader:
    """Holds a whole split on the device and gives its batches, shuffled there or in order.

    An epoch is one uniform permutation of the split. On CUDA the rows of a batch are gathered on the current
    stream, and nothing waits for the device. Batches in row order share the memory of the split.

    Parameters
    ----------
    dataset, split:
        What to load.
    batch_size:
        Rows a batch; more than the split has gives one batch.
    device:
        Where the tensors lie.
    dense_dtype:
        Type of the dense values, there and in batches: float32, or bfloat16 for half the memory.
    ids:
        For each field the id that rows get in place of each of the dataset's; None for these.

    Raises
    ------
    DatasetError
        The split is not there or is damaged, or a value in it is out of its range.
    """

    kind: Final = "device"

    def __init__(
        self,
        dataset: Dataset,
        split: Split,
        *,
        batch_size: int,
        device: torch.device | str = "cpu",
        dense_dtype: torch.dtype = torch.float32,
        ids: IdTables | None = None,
    ) -> None:
        self.batch_size = batch_size
        self.data = _load(SplitReader(dataset, split, ids=ids), torch.device(device), dense_dtype)

    @property
    def rows(self) -> int:
        """Rows of the split."""
        return len(self.data)

    @property
    def order(self) -> str:
        """Name of the way in which epochs are ordered: a permutation by the generator of the device."""
        return f"permutation-{self.data.ids.device.type}"

    def __len__(self) -> int:
        """Batches of an epoch."""
        return -(-self.rows // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches in row order."""
        return self.data.split(self.batch_size)

    def shuffled(self, *, seed: int, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch from number ``first`` on; see :class:`Loader`."""
        check_first(first, batches=len(self))
        order = epoch_order(self.rows, seed=seed, epoch=epoch, device=self.data.ids.device)
        return (self._gather(chosen) for chosen in torch.split(order, self.batch_size)[first:])

    def _gather(self, rows: Tensor) -> Batch:
        """Return some rows; on CUDA by one kernel."""
        if not rows.is_cuda or cuda_kernels_missing() is not None:
            return self.data[rows]
        from stampede.kernels import cuda

        held = cuda.Batch(ids=self.data.ids, dense=self.data.dense, labels=self.data.labels)
        chosen = cuda.gather_batch(held, rows)
        return Batch(dense=chosen.dense, ids=chosen.ids, labels=chosen.labels)

    def describe(self) -> str:
        """Return a line for the log."""
        taken = sum(tensor.nbytes for tensor in self.data.tensors)
        return f"loader: device, {self.rows:,} rows on {self.data.ids.device} ({taken / 1e6:,.0f} MB)"


def _load(reader: SplitReader, device: torch.device, dense_dtype: torch.dtype) -> Batch:
    """Read a whole split: besides the tensors, it takes the memory of one row group."""
    data = reader.empty(reader.rows, dense_dtype=dense_dtype, device=device)
    start = 0
    for group in reader.groups:
        stop = start + group.rows
        data[start:stop].copy_(reader.read(group))
        start = stop
    return data
