"""What is raised where a file cannot be read."""

from __future__ import annotations

from typing import Final

import polars as pl

# A damaged parquet file can make polars panic, which is no Exception.
READ_ERRORS: Final = (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its name where it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0]
