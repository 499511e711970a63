"""What long work says of how far it is; the caller decides how to show it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import polars as pl


class Progress(Protocol):
    """Receives the stages of a job and how far each is. ``advance`` may be called from any thread."""

    def start(self, stage: str, total: int | None) -> None:
        """Begin a stage of ``total`` rows (None: not known)."""

    def advance(self, rows: int) -> None:
        """Add rows to what is done of the current stage."""


class Silent:
    """Shows nothing."""

    def start(self, stage: str, total: int | None) -> None:
        """Ignore the stage."""

    def advance(self, rows: int) -> None:
        """Ignore the rows."""


def counted(column: pl.Expr, dtype: type[pl.DataType], advance: Callable[[int], None]) -> pl.Expr:
    """Return a column as it is, and tell ``advance`` how many rows of it were computed, from any thread.

    The column must not be constant over a plan: such a one may be computed once, as a single value.
    """

    def count(values: pl.Series) -> pl.Series:
        advance(len(values))
        return values

    return column.map_batches(count, return_dtype=dtype, is_elementwise=True)
