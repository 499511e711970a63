"""``stampede predict``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from stampede import ConfigError
from stampede.cli.common import Debug, Device, Force, Json, Threads, print_json


def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="FILES...",
            help="Raw files or quoted glob patterns, with or without labels; - is standard input, as text.",
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="File for the scores: .csv or .parquet; - is standard output, as CSV.")
    ],
    device: Device = None,
    threads: Threads = None,
    force: Force = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Score raw rows with a run.

    The result has the probability of a click for each input row, in order. Memory does not grow with the
    input.

    Example: stampede predict runs/deepfm new_rows.txt --out scores.parquet

    Example: zcat log.gz | stampede predict runs/deepfm - --out - > scores.csv
    """
    to_stdout = str(out) == "-"
    if json and to_stdout:
        raise ConfigError("--json and --out - both print on stdout: write the scores to a file")
    # Encoding and scoring take turns on the cores: torch's threads are to sleep while they wait, not to spin.
    # It is read when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")

    from stampede.cli.progress import Display
    from stampede.workflows.predict import run_predict

    with Display() as display:
        predicted = run_predict(
            run, inputs, out=out, force=force, device=device, threads=threads, progress=display
        )
    if json:
        print_json({"rows": predicted.rows, "seconds": predicted.seconds})
        return
    if not to_stdout:
        typer.echo(f"{predicted.rows:,} rows scored in {predicted.seconds:.1f} s: {out}")
