"""``stampede synth``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from stampede.cli.common import Debug, Force, Json, print_json


def synth(
    preset: Annotated[Literal["criteo", "avazu"], typer.Argument(help="Whose shape the log has.")],
    out: Annotated[Path, typer.Option(help="File to write; a name that ends in .gz is compressed.")],
    rows: Annotated[int, typer.Option(help="How many rows.")] = 1_000_000,
    seed: Annotated[int, typer.Option(help="Same seed, same file.")] = 0,
    force: Force = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Write a synthetic log in the shape of a real one.

    Example: stampede synth criteo --rows 1000000 --out train.txt
    """
    from stampede.cli.progress import Display
    from stampede.workflows.synth import run_synth

    with Display() as display:
        result = run_synth(preset, rows=rows, seed=seed, out=out, force=force, progress=display)
    if json:
        print_json({"rows": result.rows, "bytes": result.bytes, "seconds": result.seconds})
        return
    typer.echo(f"{result.rows:,} rows, {result.bytes / 1e6:,.0f} MB in {result.seconds:.1f} s: {out}")
