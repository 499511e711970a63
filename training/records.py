"""What a run writes of its progress: ``metrics.jsonl``, ``timings.jsonl``, and the same for TensorBoard.

``metrics.jsonl`` has what a run computes, and is the same for every repetition of it; how long that took
stands apart.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from stampede import CheckpointError
from stampede.training.metrics import Calibration

METRICS, TIMINGS = "metrics.jsonl", "timings.jsonl"
TENSORBOARD_FOLDER = "tensorboard"

_HISTOGRAM_BINS = 40


class Records:
    """Appends records to a run; use it as a context manager.

    Parameters
    ----------
    run:
        The folder of the run.
    after:
        The lengths to cut the files back to, of :meth:`lengths`: what was written after a checkpoint that
        the run goes on from is written again.
    step:
        The step it goes on after; what TensorBoard has of later ones is hidden.

    Raises
    ------
    CheckpointError
        A file cannot be written.
    """

    def __init__(self, run: Path, *, after: Mapping[str, int] | None = None, step: int = 0) -> None:
        self._run = run
        after = after or {}
        metrics = run / METRICS
        if after.get(METRICS) and (not metrics.is_file() or metrics.stat().st_size < after[METRICS]):
            raise CheckpointError(
                f"{metrics} is missing, or shorter than when the checkpoint was written, so lines are lost: "
                "restore the file, or train again with --force"
            )
        try:
            self._files = {name: _cut(run / name, after.get(name, 0)) for name in (METRICS, TIMINGS)}
        except OSError as error:
            raise self._cannot_write(error) from error
        with self._board_errors():
            self._board = SummaryWriter(run / TENSORBOARD_FOLDER, purge_step=step + 1)
        self._excepthook = threading.excepthook

    def __enter__(self) -> Self:
        # a failed write is raised where the next one is asked for; the thread that does it need not print it
        threading.excepthook = self._note_thread_error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            file.close()
        with suppress(OSError) if error is not None else nullcontext():
            self._board.close()
        threading.excepthook = self._excepthook

    def write(self, *, kind: str, step: int, **values: Any) -> None:
        """Write a record of a step: a line of JSON, and every number in it as the scalar ``kind/name``."""
        self._append(METRICS, {"kind": kind, "step": step, **values})
        with self._board_errors():
            for name, number in _numbers(values):
                self._board.add_scalar(f"{kind}/{name}", number, step)
            self._board.flush()

    def write_timing(self, *, step: int, epoch: int, rows: int, seconds: float) -> None:
        """Write how many rows were trained up to a step, and the seconds that took."""
        self._append(TIMINGS, {"step": step, "epoch": epoch, "rows": rows, "seconds": round(seconds, 6)})
        if seconds > 0:
            with self._board_errors():
                self._board.add_scalar("timing/rows_per_second", rows / seconds, step)

    def show_histogram(self, name: str, values: Tensor, *, step: int) -> None:
        """Give TensorBoard the histogram of some values."""
        finite = values[torch.isfinite(values)]
        if len(finite):
            with self._board_errors():
                self._board.add_histogram(name, finite, step, bins=_HISTOGRAM_BINS)

    def show_scores(self, name: str, calibration: Calibration, *, step: int) -> None:
        """Give TensorBoard how many rows have which score."""
        bins = calibration.bins
        rows = [float(entry.rows) for entry in bins]
        if sum(rows):
            means = [entry.mean_score or 0.0 for entry in bins]
            with self._board_errors():
                self._board.add_histogram_raw(
                    name,
                    min=0.0,
                    max=1.0,
                    num=sum(rows),
                    sum=sum(n * mean for n, mean in zip(rows, means, strict=True)),
                    sum_squares=sum(n * mean**2 for n, mean in zip(rows, means, strict=True)),
                    bucket_limits=[entry.upper for entry in bins],
                    bucket_counts=rows,
                    global_step=step,
                )

    def lengths(self) -> dict[str, int]:
        """Return the bytes of each file so far, once they are on the disk."""
        try:
            for file in self._files.values():
                os.fsync(file.fileno())
        except OSError as error:
            raise self._cannot_write(error) from error
        return {name: file.tell() for name, file in self._files.items()}

    def _append(self, name: str, record: Mapping[str, Any]) -> None:
        try:
            self._files[name].write(json.dumps(record).encode() + b"\n")
        except OSError as error:
            raise self._cannot_write(error) from error

    @contextmanager
    def _board_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._cannot_write(error) from error

    def _note_thread_error(self, arguments: threading.ExceptHookArgs) -> None:
        of_board = type(arguments.thread).__module__.startswith("tensorboard.")
        if not (of_board and isinstance(arguments.exc_value, OSError)):
            self._excepthook(arguments)

    def _cannot_write(self, error: OSError) -> CheckpointError:
        return CheckpointError(f"cannot write to {self._run}: {error.strerror or error}")


def _cut(file: Path, length: int) -> Any:
    """Open a file to append to, unbuffered, cut back to a length."""
    stream = file.open("ab", buffering=0)
    stream.truncate(min(length, stream.tell()))
    stream.seek(0, os.SEEK_END)
    return stream


def _numbers(values: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, dict):
            for inner, number in _numbers(value):
                yield f"{name}/{inner}", number
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield name, value
