"""A split larger than memory as batches: row groups in a seeded order, shuffled a window at a time."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stampede import ConfigError
from stampede.pipeline.dataset import Dataset, Split
from stampede.training.batch import Batch
from stampede.training.order import check_first, permutation
from stampede.training.prefetch import DeviceCopies, filled
from stampede.training.rowgroups import ROWS_PER_GROUP, IdTables, RowGroup, SplitReader

BUFFERS: Final = 2
"""Windows in memory, one read and one filled; and batches, the consumer's and the next one."""

GROUPS_TO_DECODE: Final = 6
"""What reading a row group takes, in its size as tensors: those, its columns as polars has them, the pages
that they were unpacked from, and what polars' allocator holds on to."""

_ROW_NUMBER_BYTES: Final = 8


@dataclass(frozen=True)
class Window:
    """Row groups whose rows are shuffled together; ``number`` counts the windows of an epoch from 0."""

    number: int
    groups: tuple[RowGroup, ...]

    @property
    def rows(self) -> int:
        """Rows of all its groups."""
        return sum(group.rows for group in self.groups)


class StreamLoader:
    """Reads a split anew each epoch, and gives its batches in row order or shuffled.

    The row groups of the split are shuffled; consecutive ones make up windows, as large as memory lets them
    be; the rows of a window are permuted; batches are cut through the stream of windows, across their
    borders. The order is a function of the seed, the epoch and the size of a window (:attr:`order`), which
    follows from ``memory``, the batch size and the dataset, not from the machine. So windows before the first
    batch that is asked for are left out without being read.

    How good a shuffle it is: a group is equally likely to come at any place of the epoch, next to any other,
    and all orders inside a window are equally likely. But rows of a group never leave its window: a batch has
    rows of one window's groups (of more where it reaches across borders), where a permutation of the split
    would give it rows of all. Where rows of a group are alike, as in a log in order of time, a window wants
    many groups: give it memory. With room for the whole split in one window it is a uniform permutation.

    A thread of the iterator decodes the next window while the batches of the last are consumed; to a GPU,
    batches are copied one ahead from pinned memory. The thread ends with the iterator, also where that is
    closed or left early. Each iterator has buffers of its own.

    Parameters
    ----------
    dataset, split:
        What to load.
    batch_size:
        Rows a batch; more than the split has gives one batch.
    device:
        Where batches are given.
    memory:
        Bytes of the host that an iterator may take: windows, batches, decoding. Polars' allocator keeps some
        memory for each of its threads, which may be more than is set aside for it on many cores. Batches on a
        GPU come on top, three at most.
    dense_dtype:
        Type of the dense values: float32 or bfloat16.
    group_rows:
        Rows of a row group in the parts; where they have more, decoding takes more memory.
    ids:
        For each field the id that rows get in place of each of the dataset's; None for these.

    Raises
    ------
    DatasetError
        The split is not there. Iterating raises it for a damaged part, and for values out of their range.
    ConfigError
        ``memory`` is too little for windows of one row group.
    """

    kind: Final = "stream"

    def __init__(
        self,
        dataset: Dataset,
        split: Split,
        *,
        batch_size: int,
        device: torch.device | str = "cpu",
        memory: int,
        dense_dtype: torch.dtype = torch.float32,
        group_rows: int = ROWS_PER_GROUP,
        ids: IdTables | None = None,
    ) -> None:
        self.batch_size = batch_size
        self._reader = SplitReader(dataset, split, group_rows=group_rows, ids=ids)
        self._device = torch.device(device)
        self._dense_dtype = dense_dtype
        self._group_rows = max((group.rows for group in self._reader.groups), default=0)
        self._window_rows = self._fitting_rows(memory)

    @property
    def rows(self) -> int:
        """Rows of the split."""
        return self._reader.rows

    @property
    def order(self) -> str:
        """Name of the way in which epochs are ordered: by windows of so many rows."""
        return f"windows-{self._window_rows}-{self._group_rows}"

    @property
    def memory(self) -> int:
        """Bytes of the host that an iterator takes at most."""
        return self._memory_of(self._window_rows)

    def __len__(self) -> int:
        """Batches of an epoch."""
        return -(-self.rows // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches in row order."""
        windows = [Window(number, (group,)) for number, group in enumerate(self._reader.groups)]
        return self._iterate(windows, skip=0, order_of=None)

    def shuffled(self, *, seed: int, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch from number ``first`` on; see :meth:`Loader.shuffled`."""
        check_first(first, batches=len(self))
        windows = epoch_windows(self._reader.groups, rows=self._window_rows, seed=seed, epoch=epoch)
        skip = min(first * self.batch_size, self.rows)
        ends = accumulate(window.rows for window in windows)
        done = sum(end <= skip for end in ends)
        skip -= sum(window.rows for window in windows[:done])

        def order_of(window: Window) -> Tensor:
            return permutation(window.rows, [seed, epoch, 1 + window.number])

        return self._iterate(windows[done:], skip=skip, order_of=order_of)

    def describe(self) -> str:
        """Return a line for the log."""
        groups = self._window_rows // max(1, self._group_rows)
        window = self._window_rows * self._reader.row_bytes(self._dense_dtype)
        return (
            f"loader: stream, {self.rows:,} rows, window of {groups:,} row group{'' if groups == 1 else 's'} "
            f"({window / 1e6:,.0f} MB), {self.memory / 1e6:,.0f} MB in all"
        )

    def _fitting_rows(self, memory: int) -> int:
        """Return the rows of the largest window, in whole groups, that fits."""
        least = self._memory_of(self._group_rows)
        if least > memory:
            raise ConfigError(
                f"a stream of split {self._reader.split} takes {least:,} bytes at a batch size of "
                f"{self.batch_size:,}, and may have {memory:,}: give it more memory (--loader-memory)"
            )
        groups = 1 + (memory - least) // max(1, self._memory_of(self._group_rows) - self._memory_of(0))
        return min(groups, len(self._reader.groups)) * self._group_rows

    def _memory_of(self, window_rows: int) -> int:
        """Return the bytes that an iterator takes with windows of so many rows."""
        row = self._reader.row_bytes(self._dense_dtype)
        in_windows = BUFFERS * row + _ROW_NUMBER_BYTES  # the window that is filled has its permutation
        batches = BUFFERS * min(self.batch_size, self.rows) * row
        decoding = GROUPS_TO_DECODE * self._group_rows * self._reader.row_bytes()
        return window_rows * in_windows + batches + decoding

    def _iterate(
        self, windows: Sequence[Window], *, skip: int, order_of: Callable[[Window], Tensor] | None
    ) -> Iterator[Batch]:
        """Yield the batches of windows on the device, but for so many rows at the beginning."""
        if self._device.type != "cuda":
            yield from self._batches(windows, skip=skip, order_of=order_of, empty=self._empty)
            return
        size = min(self.batch_size, self.rows)
        copies = DeviceCopies((self._empty(size, pinned=True), self._empty(size, pinned=True)), self._device)
        batches = self._batches(windows, skip=skip, order_of=order_of, empty=copies.empty)
        with closing(batches):
            yield from copies.ahead(batches)

    def _batches(
        self,
        windows: Sequence[Window],
        *,
        skip: int,
        order_of: Callable[[Window], Tensor] | None,
        empty: Callable[[int], Batch],
    ) -> Generator[Batch]:
        """Yield the batches of windows, each written to what ``empty`` gives for so many rows."""

        def fill(window: Window, buffer: Batch) -> Iterator[None]:
            places = None if order_of is None else order_of(window).numpy()
            start = 0
            for group in window.groups:
                stop = start + group.rows
                where = slice(start, stop) if places is None else places[start:stop]
                put(self._reader.read(group), buffer, where)
                start = stop
                yield

        largest = max((window.rows for window in windows), default=0)
        buffers = [self._empty(largest) for _ in range(min(BUFFERS, len(windows)))]
        whole = filled(windows, buffers, fill)
        left = sum(window.rows for window in windows) - skip
        with closing(whole):
            yield from cut(
                (buffer[: window.rows] for window, buffer in whole),
                skip=skip,
                rows=left,
                batch_size=self.batch_size,
                empty=empty,
            )

    def _empty(self, rows: int, *, pinned: bool = False) -> Batch:
        return self._reader.empty(rows, dense_dtype=self._dense_dtype, pinned=pinned)


def epoch_windows(groups: Sequence[RowGroup], *, rows: int, seed: int, epoch: int) -> list[Window]:
    """Return the windows of an epoch: the groups in a seeded order, cut into windows of at most so many rows.

    The last window is not much smaller than the others, where that does not make one more.
    """
    total = sum(group.rows for group in groups)
    if total == 0:
        return []
    largest = max(group.rows for group in groups)
    even = -(-total // -(-total // rows))
    most = min(rows, even + largest - 1)
    windows: list[list[RowGroup]] = []
    taken = most
    for place in permutation(len(groups), [seed, epoch]).tolist():
        group = groups[place]
        if taken + group.rows > most:
            windows.append([])
            taken = 0
        windows[-1].append(group)
        taken += group.rows
    return [Window(number, tuple(members)) for number, members in enumerate(windows)]


def cut(
    windows: Iterable[Batch], *, skip: int, rows: int, batch_size: int, empty: Callable[[int], Batch]
) -> Iterator[Batch]:
    """Yield rows of windows as batches, across the borders between windows.

    Parameters
    ----------
    windows:
        Rows on the CPU; each is used until the next one is asked for.
    skip:
        Rows of the first window to leave out.
    rows:
        How many there are after those.
    batch_size:
        Rows a batch; the last one may have fewer.
    empty:
        Gives room for so many rows, to be written to and yielded.
    """
    batch, filled_rows = empty(min(batch_size, rows)), 0
    start = skip
    for window in windows:
        while start < len(window):
            taken = min(len(batch) - filled_rows, len(window) - start)
            put(window[start : start + taken], batch, slice(filled_rows, filled_rows + taken))
            start += taken
            filled_rows += taken
            if filled_rows == len(batch):
                yield batch
                rows -= len(batch)
                if rows == 0:
                    return
                batch, filled_rows = empty(min(batch_size, rows)), 0
        start = 0


def put(rows: Batch, into: Batch, places: NDArray[np.int64] | slice) -> None:
    """Write rows to places of others, both on the CPU; the dense values take the type that they have there.

    A row is copied as one value of its bytes: numpy does that twice as fast as torch and on this thread
    alone, while torch would start another team of OpenMP threads beside the one that trains.
    """
    dense = rows.dense.to(into.dense.dtype)
    for source, destination in zip((dense, rows.ids, rows.labels), into.tensors, strict=True):
        if source.numel() > 0:
            _whole_rows(destination)[places] = _whole_rows(source)


def _whole_rows(tensor: Tensor) -> NDArray[np.void]:
    """View a contiguous tensor ``[N, …]`` as ``[N]`` values of a row's bytes each."""
    flat = tensor.view(torch.uint8).reshape(len(tensor), -1).numpy()
    return flat.view(np.dtype((np.void, flat.shape[1])))[:, 0]
