"""How far a study is, on stderr: a line per run, and a bar on a terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn


class StudyDisplay:
    """Shows the runs of a study as they end (:class:`stampede.workflows.sweep.SweepObserver`).

    Use it as a context manager.
    """

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=not self._terminal,
        )
        self._task = self._bar.add_task("", visible=False)
        self._runs = self._ended = 0
        self._started = time.monotonic()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def study_started(self, runs: int, rows: int) -> None:
        """Begin to train that many runs, of that many rows at most."""
        self._runs, self._started = runs, time.monotonic()
        self._bar.update(self._task, description=f"0 of {runs} runs", total=rows, visible=runs > 0)
        self._print(f"{runs} runs to train" if runs else "nothing to train: all runs are there")

    def rows_trained(self, rows: int) -> None:
        """Take note of rows that were trained, or will not be since their run has ended."""
        self._bar.advance(self._task, rows)

    def run_ended(self, name: str, what: str) -> None:
        """Print what a run came to."""
        self._ended += 1
        self._bar.update(self._task, description=f"{self._ended} of {self._runs} runs")
        minutes = (time.monotonic() - self._started) / 60
        self._print(f"{self._ended}/{self._runs} {name}: {what} ({minutes:.1f} min so far)")

    def _print(self, line: str) -> None:
        if self._terminal:
            self._bar.console.print(line, highlight=False)
        else:
            print(line, file=sys.stderr, flush=True)
