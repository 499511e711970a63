"""``stampede transform``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stampede.cli.common import Debug, Force, Json, print_json


def transform(
    run_or_dataset: Annotated[
        Path, typer.Argument(help="Folder whose vocabularies and statistics are used.")
    ],
    inputs: Annotated[
        list[str],
        typer.Argument(metavar="FILES...", help="Raw files or quoted glob patterns, with or without labels."),
    ],
    out: Annotated[Path, typer.Option(help="File to write: .parquet, with the columns of a dataset's part.")],
    no_counts: Annotated[
        bool, typer.Option("--no-counts", help="Leave out the column with the count of each id.")
    ] = False,
    force: Force = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Encode raw rows as training saw them.

    The result has one row for each input row, in order.

    Example: stampede transform data/criteo new_rows.txt --out encoded.parquet
    """
    from stampede.cli.progress import Display
    from stampede.workflows.transform import run_transform

    with Display() as display:
        done = run_transform(
            run_or_dataset, inputs, out=out, counts=not no_counts, force=force, progress=display
        )
    if json:
        print_json({"rows": done.rows, "seconds": done.seconds})
        return
    typer.echo(f"{done.rows:,} rows encoded in {done.seconds:.1f} s: {out}")
