"""A signal to stop lets a run save its state first."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

_STDERR = 2
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Take note of the first SIGINT or SIGTERM; a second one interrupts at once. Use it as a context manager.

    Signals reach the main thread alone: in another one this does nothing.
    """

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}
        self._came = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def __call__(self) -> bool:
        """Whether a signal came."""
        return self._came

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        if self._came:
            raise KeyboardInterrupt
        self._came = True
        line = "stampede: stopping once the state is saved; interrupt again to stop at once\n"
        # not print: the signal may have come in the middle of another print to the same stream
        os.write(_STDERR, line.encode())
