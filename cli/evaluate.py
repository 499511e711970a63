"""``stampede evaluate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stampede.cli.common import Debug, Device, Json, Threads, number, print_json, print_table


def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    data: Annotated[
        Path | None, typer.Option(help="Another dataset with the run's vocabularies. [the run's own]")
    ] = None,
    split: Annotated[str, typer.Option(help="train, valid, test, or one that was added.")] = "test",
    device: Device = None,
    threads: Threads = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Give exact AUC, log loss and calibration of a run.

    They are of its best epoch.

    Example: stampede evaluate runs/deepfm --split test
    """
    from dataclasses import asdict

    from stampede.workflows.evaluate import run_evaluate

    metrics = run_evaluate(run, data=data, split=split, device=device, threads=threads)
    bins = metrics.calibration.bins
    if json:
        print_json(
            {
                "auc": metrics.auc,
                "logloss": metrics.logloss,
                "rows": metrics.rows,
                "click_rate": metrics.click_rate,
                "mean_score": metrics.mean_score,
                "calibration": [asdict(entry) for entry in bins],
            }
        )
        return
    typer.echo(f"{run}, split {split} of {data or 'its dataset'}")
    typer.echo(f"AUC         {number(metrics.auc)}")
    typer.echo(f"log loss    {number(metrics.logloss)}")
    typer.echo(f"rows        {metrics.rows:,}")
    typer.echo(f"click rate  {number(metrics.click_rate)}")
    typer.echo(f"mean score  {number(metrics.mean_score)}")
    typer.echo()
    print_table(
        ("score", "rows", "mean score", "click rate"),
        [
            (
                f"{b.lower:.1f}-{b.upper:.1f}",
                f"{b.rows:,}",
                number(b.mean_score, digits=4),
                number(b.click_rate, digits=4),
            )
            for b in bins
            if b.rows
        ],
    )
    if metrics.auc is None:
        typer.echo("the AUC is undefined: all labels are of one class")
