"""``stampede synth``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from stampede import ConfigError
from stampede.cli.common import Debug, Force, Json, print_json


def synth(
    preset: Annotated[Literal["criteo", "avazu"], typer.Argument(help="Whose shape the log has.")],
    out: Annotated[
        Path,
        typer.Option(
            help="File to write; a name that ends in .gz is compressed. With --days a folder, which gets "
            "day_01.tsv and so on, or a name with {day} in it, such as 'log_{day}.tsv.gz'."
        ),
    ],
    rows: Annotated[int, typer.Option(help="How many rows; with --days, of each day.")] = 1_000_000,
    seed: Annotated[int, typer.Option(help="Same seed, same file.")] = 0,
    days: Annotated[
        int | None, typer.Option(help="Write so many days of a log that drifts, a file a day (criteo).")
    ] = None,
    first_day: Annotated[
        int | None, typer.Option(help="Number of the first of them: any day can be written alone. [1]")
    ] = None,
    drift: Annotated[
        float | None,
        typer.Option(
            help="How fast values come and go, popularity and effects move from day to day; 0 for not at "
            "all, 2 for twice as fast. [1]"
        ),
    ] = None,
    force: Force = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Write a synthetic log in the shape of a real one.

    Example: stampede synth criteo --rows 1000000 --out train.txt
    """
    from stampede.cli.progress import Display
    from stampede.workflows.synth import run_synth, run_synth_days

    written: tuple[Path, ...] = (out,)
    if days is None:
        for flag, value in (("--first-day", first_day), ("--drift", drift)):
            if value is not None:
                raise ConfigError(f"{flag} is of use with --days only")
        with Display() as display:
            result = run_synth(preset, rows=rows, seed=seed, out=out, force=force, progress=display)
        total, size, seconds = result.rows, result.bytes, result.seconds
    else:
        with Display() as display:
            found = run_synth_days(
                preset,
                days=days,
                first_day=1 if first_day is None else first_day,
                drift=1.0 if drift is None else drift,
                rows=rows,
                seed=seed,
                out=out,
                force=force,
                progress=display,
            )
        written, total, size, seconds = found.files, found.rows, found.bytes, found.seconds
    if json:
        files = [str(file) for file in written]
        print_json({"rows": total, "bytes": size, "seconds": seconds, "files": files})
        return
    names = str(written[0]) if len(written) == 1 else f"{written[0]} to {written[-1].name}"
    typer.echo(f"{total:,} rows, {size / 1e6:,.0f} MB in {seconds:.1f} s: {names}")
