"""How far long work is, on stderr: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

if TYPE_CHECKING:
    from stampede.training.metrics import Metrics

SECONDS_PER_LINE = 10.0


class _Speed(ProgressColumn):
    """Share done where the whole is known, rows done, and rows per second since the stage began."""

    def render(self, task: Task) -> Text:
        """Write the column."""
        share = "" if task.total is None else f"{task.percentage:.0f}% "
        rate = f", {task.completed / task.elapsed:,.0f}/s" if task.elapsed else ""
        return Text(f"{share}{int(task.completed):,} rows{rate}", no_wrap=True)


class Display:
    """Shows the stages of a job (:class:`stampede.pipeline.progress.Progress`) and the epochs of a run.

    Use it as a context manager.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._terminal = sys.stderr.isatty()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            _Speed(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=Console(stderr=True),
            transient=True,
            disable=not self._terminal,
        )
        self._task = self._bar.add_task("", visible=False, note="")
        self._stage = ""
        self._total: int | None = None
        self._done = 0
        self._started = self._last_line = time.monotonic()
        self._loss = ""

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._finish_stage()
        self._bar.stop()

    def start(self, stage: str, total: int | None) -> None:
        """Begin a stage of ``total`` rows (None: not known)."""
        self._finish_stage()
        with self._lock:
            self._stage, self._total, self._done, self._loss = stage, total, 0, ""
            self._started = self._last_line = time.monotonic()
            self._bar.reset(self._task, description=stage, total=total, visible=True, note="")

    def advance(self, rows: int) -> None:
        """Add rows to what is done; safe from any thread."""
        with self._lock:
            self._done += rows
            self._bar.advance(self._task, rows)
            now = time.monotonic()
            if not self._terminal and now - self._last_line > SECONDS_PER_LINE:
                self._last_line = now
                print(self._line(now), file=sys.stderr)

    def epoch_started(self, epoch: int, epochs: int, rows: int) -> None:
        """Begin an epoch."""
        self.start(f"epoch {epoch}/{epochs}", rows)

    def rows_trained(self, rows: int, loss: float | None) -> None:
        """Add the rows of a step, and its loss where it was read."""
        if loss is not None:
            self._loss = f"loss {loss:.4f}"
            self._bar.update(self._task, note=self._loss)
        self.advance(rows)

    def epoch_ended(self, epoch: int, valid: Metrics | None, *, best: bool) -> None:
        """Print what an epoch came to."""
        seconds = max(time.monotonic() - self._started, 1e-9)
        line = f"{self._stage}: {self._done:,} rows, {self._done / seconds:,.0f} rows/s"
        if valid is not None:
            auc = "undefined" if valid.auc is None else f"{valid.auc:.5f}"
            line += f", valid AUC {auc}, log loss {valid.logloss:.5f}{', best' if best else ''}"
        self._stage = ""
        self._print(line)

    def _finish_stage(self) -> None:
        if self._stage:
            seconds = time.monotonic() - self._started
            rows = f"{self._done:,} rows in " if self._done else ""
            self._print(f"{self._stage}: {rows}{seconds:.1f} s")
            self._stage = ""

    def _line(self, now: float) -> str:
        seconds = max(now - self._started, 1e-9)
        speed = self._done / seconds
        line = f"{self._stage}: {self._done:,} rows, {speed:,.0f} rows/s"
        if self._total:
            left = (self._total - self._done) / speed
            line += f", {100 * self._done / self._total:.0f}%, {left:.0f} s left"
        return f"{line}, {self._loss}" if self._loss else line

    def _print(self, line: str) -> None:
        if self._terminal:
            self._bar.console.print(line, highlight=False)
        else:
            print(line, file=sys.stderr)
