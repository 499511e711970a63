"""The batches of a split: what a loader is, and which one to take.

:class:`stampede.training.resident.DeviceLoader` holds all rows where the model is and is the faster;
:class:`stampede.training.stream.StreamLoader` reads a split that is larger than memory. Neither runs Python
per row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, Protocol

import torch

from stampede.pipeline.dataset import Dataset, Split
from stampede.training.batch import Batch
from stampede.training.memory import available_memory
from stampede.training.resident import DeviceLoader
from stampede.training.rowgroups import IdTables, SplitReader
from stampede.training.stream import StreamLoader

LoaderKind = Literal["device", "stream"]

SHARE_OF_MEMORY: Final = 0.5
"""Of the memory left to the process, what a split may take: tables and activations need some too."""

SHARE_OF_DEVICE: Final = 0.6
"""The same of a GPU's free memory."""


class Loader(Protocol):
    """The batches of a split, on the device of the model.

    The last batch of an epoch is shorter where the batch size does not divide the split; no row is dropped.
    """

    batch_size: int

    @property
    def kind(self) -> LoaderKind:
        """Whether the split lies on the device or is streamed."""

    @property
    def rows(self) -> int:
        """Rows of the split."""

    @property
    def order(self) -> str:
        """Name of the way in which epochs are ordered.

        Two loaders of a split with the same name and batch size give the same batches for the same seed and
        epoch; with another name they do not, so a checkpoint should keep it and a resumed run compare it.
        """

    def __len__(self) -> int:
        """Batches of an epoch."""

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches in row order."""

    def shuffled(self, *, seed: int, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch in an order that depends on the seed and the epoch alone.

        Parameters
        ----------
        seed, epoch:
            What the order is drawn from, 0 or more each.
        first:
            Index of the batch to begin with: those from there are the ones that a whole epoch has there.

        Raises
        ------
        ConfigError
            The epoch has no such batch; its end, ``len(loader)``, is one, and gives none.
        """

    def describe(self) -> str:
        """Return a line for the log: the kind, the rows, the memory."""


def open_loader(
    dataset: Dataset,
    split: Split,
    *,
    batch_size: int,
    device: torch.device | str = "cpu",
    kind: Literal["auto", "device", "stream"] = "auto",
    memory: int,
    dense_dtype: torch.dtype = torch.float32,
    ids: IdTables | None = None,
) -> Loader:
    """Open a split as the loader that fits.

    Parameters
    ----------
    dataset, split, batch_size, device, dense_dtype, ids:
        As of :class:`DeviceLoader`.
    kind:
        ``auto`` holds the split on the device where it takes at most :data:`SHARE_OF_MEMORY` of what is
        left to the process, or :data:`SHARE_OF_DEVICE` of what is free on the GPU; else it is streamed. The
        order of an epoch follows the kind, so a run that must resume exactly asks for the kind it began with.
    memory:
        Bytes that a stream may take.

    Raises
    ------
    DatasetError
        The split is not there or is damaged.
    ConfigError
        ``memory`` is too little for a stream.
    """
    place = torch.device(device)
    if kind == "auto":
        reader = SplitReader(dataset, split)
        kind = "device" if reader.rows * reader.row_bytes(dense_dtype) <= _room(place) else "stream"
    if kind == "device":
        return DeviceLoader(
            dataset, split, batch_size=batch_size, device=place, dense_dtype=dense_dtype, ids=ids
        )
    return StreamLoader(
        dataset, split, batch_size=batch_size, device=place, memory=memory, dense_dtype=dense_dtype, ids=ids
    )


def _room(device: torch.device) -> float:
    """Return the bytes that a split may take on a device."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return SHARE_OF_DEVICE * free
    return SHARE_OF_MEMORY * available_memory()
