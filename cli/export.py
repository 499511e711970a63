"""``stampede export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from stampede.cli.common import Debug, Force, Json, print_json


def export(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    out: Annotated[Path, typer.Option(help="File to write: .onnx, or .pt2 for torch.export.")],
    format: Annotated[
        Literal["onnx", "torch"] | None, typer.Option(help="Kind of file. [by the name of --out]")
    ] = None,
    force: Force = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Write the model of a run as one file, for ONNX runtimes or torch.export.

    The file takes encoded rows, which 'stampede transform RUN' makes of raw ones: dense (float32) and ids
    (int64), columns in the order of its metadata. Its scores are checked against the run's.

    Example: stampede export runs/deepfm --out model.onnx
    """
    from stampede.cli.progress import Display
    from stampede.workflows.export import run_export

    with Display() as display:
        done = run_export(run, out=out, format=format, force=force, progress=display)
    if json:
        print_json(
            {
                "out": str(done.out),
                "format": done.format,
                "bytes": done.bytes,
                "data": None if done.data is None else str(done.data),
                "max_difference": done.agreement.max_difference,
                "rows_checked": done.agreement.rows,
            }
        )
        return
    typer.echo(
        f"{done.out}: {done.bytes:,} bytes; scores of {done.agreement.rows:,} rows within "
        f"{done.agreement.max_difference:.1e} of the run's"
    )
    if done.data is not None:
        typer.echo(f"the weights are in {done.data}: keep both files together")
