"""Time as the device has it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

Mark = Any  # a CUDA event, or seconds


class Clock:
    """Marks in a device's order of work: CUDA events, or the time on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._on_cuda = device.type == "cuda"

    def mark(self) -> Mark:
        """Mark the present point of the work."""
        if not self._on_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def wait(self) -> None:
        """Wait until all marked work is done."""
        if self._on_cuda:
            torch.cuda.synchronize()

    def seconds(self, start: Mark, end: Mark) -> float:
        """Give the time between two marks, once the work is done."""
        return float(start.elapsed_time(end)) / 1e3 if self._on_cuda else end - start


class Spans:
    """How long the work of some phases takes together, by name."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._marks: defaultdict[str, list[tuple[Mark, Mark]]] = defaultdict(list)

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Count what is done inside."""
        start = self._clock.mark()
        yield
        self._marks[name].append((start, self._clock.mark()))

    def seconds(self) -> dict[str, float]:
        """Give the sums, once the work is done."""
        self._clock.wait()
        return {
            name: sum(self._clock.seconds(start, end) for start, end in marks)
            for name, marks in self._marks.items()
        }
