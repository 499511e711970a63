"""A function over many items on several threads, its results in the order of the items."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

SECONDS_PER_WAIT = 0.2


def in_order(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    threads: int,
    stop: threading.Event | None = None,
) -> Generator[Result, None, None]:
    """Yield ``function(item)`` of each item, in order.

    A thread of its own takes the items, ``threads`` others compute. At most ``threads + 1`` items are on
    their way, so that memory does not grow with their number. An error of an item, or of taking the next
    one, is raised where its result would have come.

    Parameters
    ----------
    stop:
        Set when no more results are wanted; the iterable must then end by itself, also where it waits.
    """
    stop = stop or threading.Event()
    free = threading.Semaphore(threads + 1)
    results: queue.SimpleQueue[Future[Result] | None] = queue.SimpleQueue()

    with ThreadPoolExecutor(threads, thread_name_prefix="stampede-encode") as pool:

        def feed() -> None:
            last: Future[Result] | None = None
            try:
                for item in items:
                    free.acquire()
                    if stop.is_set():
                        return
                    results.put(pool.submit(function, item))
            except BaseException as error:  # a panic of polars is no Exception
                last = Future()
                last.set_exception(error)
            finally:
                if last is not None:
                    results.put(last)
                results.put(None)

        feeder = threading.Thread(target=feed, name="stampede-read")
        feeder.start()
        try:
            while (future := _next(results)) is not None:
                yield future.result()
                free.release()
        finally:
            stop.set()
            free.release()
            feeder.join()
            pool.shutdown(cancel_futures=True)


def _next(results: queue.SimpleQueue[Future[Result] | None]) -> Future[Result] | None:
    """Wait for a result, a while at a time: a signal may not end a wait (polars sets SA_RESTART)."""
    while True:
        with suppress(queue.Empty):
            return results.get(timeout=SECONDS_PER_WAIT)
