"""Work ahead of the consumer: buffers filled by a thread, batches copied to a GPU."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Final, TypeVar

import torch

from stampede.training.batch import Batch

Job = TypeVar("Job")
Buffer = TypeVar("Buffer")

THREAD_NAME: Final = "stampede-prefetch"


def filled(
    jobs: Iterable[Job], buffers: Sequence[Buffer], fill: Callable[[Job, Buffer], Iterator[None]]
) -> Generator[tuple[Job, Buffer]]:
    """Yield jobs in order, each with a buffer that a background thread has filled for it.

    A buffer is the consumer's until it asks for the next one, so with two of them one is filled while the
    other is read. The thread starts with the first ``next`` and has ended when the iterator has: at its end,
    at an error, or when it is closed or let go of, which waits for the current step of ``fill``.

    Parameters
    ----------
    jobs:
        What to fill buffers for; taken from in the thread.
    buffers:
        At least one.
    fill:
        Fills a buffer, in steps: the thread may be stopped after each.

    Raises
    ------
    BaseException
        Whatever ``jobs`` or ``fill`` raise, as it is, after the buffers that were filled before.
    """
    free: queue.SimpleQueue[Buffer | None] = queue.SimpleQueue()
    ready: queue.SimpleQueue[tuple[Job, Buffer] | _End] = queue.SimpleQueue()
    stop = threading.Event()
    for buffer in buffers:
        free.put(buffer)

    def work() -> None:
        try:
            for job in jobs:
                buffer = free.get()
                if buffer is None or stop.is_set():
                    return
                for _ in fill(job, buffer):
                    if stop.is_set():
                        return
                ready.put((job, buffer))
        except BaseException as error:  # to be raised where the consumer is
            ready.put(_End(error))
        else:
            ready.put(_End(None))

    # A daemon, so that an iterator that nobody closes does not keep the program from ending.
    thread = threading.Thread(target=work, name=THREAD_NAME, daemon=True)
    thread.start()
    try:
        while not isinstance(item := ready.get(), _End):
            yield item
            free.put(item[1])
        item.raise_error()
    finally:
        stop.set()
        free.put(None)  # for a thread that waits for a buffer
        thread.join()


class _End:
    """The last thing that a thread says: the error that ended it, if any."""

    def __init__(self, error: BaseException | None) -> None:
        self._error = error

    def raise_error(self) -> None:
        # Forgotten here: its traceback holds the frames, and those the buffers.
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error


class DeviceCopies:
    """Copies batches to a GPU on a stream of their own, one ahead of the one that is consumed.

    Two pinned buffers take turns: while the copy from one is under way, the next batch is put together in
    the other. The host waits only where that copy is not done when its buffer's turn comes again.

    Parameters
    ----------
    buffers:
        Two, pinned, each with room for the largest batch.
    device:
        A CUDA device.
    """

    def __init__(self, buffers: tuple[Batch, Batch], device: torch.device) -> None:
        self._buffers = buffers
        self._copied = (torch.cuda.Event(), torch.cuda.Event())  # type: ignore[no-untyped-call]
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._turn = 0

    def empty(self, rows: int) -> Batch:
        """Return the buffer whose turn it is, cut to so many rows, once it may be written to."""
        self._copied[self._turn].synchronize()  # returns at once where nothing was recorded yet
        return self._buffers[self._turn][:rows]

    def ahead(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches on the device, to be used on its current stream.

        Parameters
        ----------
        batches:
            Each written to what :meth:`empty` last returned.
        """
        waiting: tuple[Batch, torch.cuda.Event] | None = None
        for batch in batches:
            sent = self._send(batch)
            if waiting is not None:
                yield self._received(*waiting)
            waiting = sent
        if waiting is not None:
            yield self._received(*waiting)

    def _send(self, batch: Batch) -> tuple[Batch, torch.cuda.Event]:
        copied = self._copied[self._turn]
        self._turn = 1 - self._turn
        with torch.cuda.stream(self._stream):
            on_device = batch.to(self._device, non_blocking=True)
            copied.record(self._stream)
        return on_device, copied

    def _received(self, batch: Batch, copied: torch.cuda.Event) -> Batch:
        consumer = torch.cuda.current_stream(self._device)
        consumer.wait_event(copied)
        for tensor in batch.tensors:
            # The memory is the side stream's: it must not take it again while the consumer's work reads it.
            tensor.record_stream(consumer)
        return batch
