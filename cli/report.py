"""``stampede report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stampede.cli.common import Debug, Device, Force, Json, Threads, number, print_json, say


def report(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    out: Annotated[Path | None, typer.Option(help="The HTML file. [report.html in the run]")] = None,
    data: Annotated[
        Path | None, typer.Option(help="Another dataset with the run's vocabularies. [the run's own]")
    ] = None,
    split: Annotated[str | None, typer.Option(help="The split to score. [test, else valid]")] = None,
    device: Device = None,
    threads: Threads = None,
    force: Force = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Draw a run: one HTML file that needs nothing beside it.

    It shows how training went, what clipping did to rare and frequent ids, norms, calibration, and AUC and
    log loss by frequency. The report in the run's folder is replaced; another --out needs --force.

    Example: stampede report runs/deepfm
    """
    from stampede.cli.progress import Display
    from stampede.workflows.report import run_report

    with Display() as display:
        reported = run_report(
            run,
            out=out,
            force=force,
            data_path=data,
            split=split,
            device=device,
            threads=threads,
            say=say,
            progress=display,
        )
    if json:
        print_json(
            {
                "out": str(reported.out),
                "split": reported.split,
                "auc": reported.auc,
                "logloss": reported.logloss,
            }
        )
        return
    if reported.split is not None:
        typer.echo(f"{reported.split}: AUC {number(reported.auc)}, log loss {number(reported.logloss)}")
    typer.echo(str(reported.out))
