"""What every command shares: its common flags and how a result is printed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import typer

Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else there.")
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Device = Annotated[
    Literal["auto", "cpu", "cuda"] | None, typer.Option(help="Where to compute. [as the run did]")
]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads. [as the run did]")]
Force = Annotated[bool, typer.Option("--force", help="Replace what is at --out.")]


def print_json(document: Any) -> None:
    """Print one JSON document on stdout; what is undefined is null in it."""
    typer.echo(json.dumps(document, allow_nan=False))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table on stdout, no wider than the terminal.

    Columns of names stand to the left, those of numbers to the right: the first is a name, and so is a last
    one whose header says "values", which is cut where it does not fit.
    """
    last_is_text = header[-1].endswith("values")
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    room = shutil.get_terminal_size((120, 24)).columns
    for row in (header, *rows):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        if last_is_text:
            cells[-1] = row[-1]
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
