"""What a run writes of its progress: ``metrics.jsonl`` line by line, and the same scalars for TensorBoard."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torch.utils.tensorboard import SummaryWriter

METRICS = "metrics.jsonl"
TENSORBOARD_FOLDER = "tensorboard"


class Records:
    """Appends records to a run; use it as a context manager.

    Parameters
    ----------
    run:
        The folder of the run.
    """

    def __init__(self, run: Path) -> None:
        self._lines = (run / METRICS).open("a", encoding="utf-8")
        self._board = SummaryWriter(run / TENSORBOARD_FOLDER)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lines.close()
        self._board.close()

    def write(self, *, kind: str, step: int, **values: Any) -> None:
        """Write a record of a step: a line of JSON, and every number in it as the scalar ``kind/name``."""
        self._lines.write(json.dumps({"kind": kind, "step": step, **values}) + "\n")
        self._lines.flush()
        for name, number in _numbers(values):
            self._board.add_scalar(f"{kind}/{name}", number, step)
        self._board.flush()


def _numbers(values: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, dict):
            for inner, number in _numbers(value):
                yield f"{name}/{inner}", number
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield name, value
