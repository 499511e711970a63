"""What every command shares: its common flags and how a result is printed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Sequence
from typing import Annotated, Any, Literal

import typer

Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else there.")
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Device = Annotated[
    Literal["auto", "cpu", "cuda"] | None, typer.Option(help="Where to compute. [as the run did]")
]
Threads = Annotated[int | None, typer.Option(min=1, max=1024, help="CPU threads. [as the run did]")]
Force = Annotated[bool, typer.Option("--force", help="Replace what is at --out.")]


def print_json(document: Any) -> None:
    """Print one JSON document on stdout; what is undefined is null in it."""
    typer.echo(json.dumps(document, allow_nan=False))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: Collection[str] = ()) -> None:
    """Print a table on stdout; a line that is wider than the terminal is cut.

    The first column and those named in ``left`` stand to the left, the others, of numbers, to the right.
    """
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    room = shutil.get_terminal_size((120, 24)).columns
    for row in (header, *rows):
        cells = [
            cell.ljust(width) if i == 0 or header[i] in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        line = "  ".join(cells).rstrip()
        typer.echo(f"{line[: room - 1]}…" if len(line) > room else line)


def given(**values: Any) -> dict[str, Any]:
    """Return the values that a user gave: those that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def say(line: str) -> None:
    """Print a line that the user should read on stderr."""
    typer.echo(f"stampede: {line}", err=True)


def number(value: float | None, *, digits: int = 5) -> str:
    """Format a metric; what is undefined says so."""
    return "undefined" if value is None else f"{value:.{digits}f}"
