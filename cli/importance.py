"""``stampede importance``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stampede.cli.common import Debug, Device, Force, Json, Threads, number, print_json, print_table, say

if TYPE_CHECKING:
    from stampede.workflows.importance import Effect


def importance(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    data: Annotated[
        Path | None, typer.Option(help="Another dataset with the run's vocabularies. [the run's own]")
    ] = None,
    split: Annotated[str, typer.Option(help="train, valid, test, or one that was added.")] = "test",
    repeats: Annotated[int, typer.Option(min=1, help="How often each column is shuffled.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the shuffles.")] = 0,
    out: Annotated[Path | None, typer.Option(help="A CSV file for the table.")] = None,
    device: Device = None,
    threads: Threads = None,
    force: Force = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Say what each input column is worth to a run.

    A column is shuffled over all rows of the split, and every row is scored anew: what the AUC loses and the
    log loss gains is what the model had from that column beside the others.

    Example: stampede importance runs/deepfm --split test --out importance.csv
    """
    from stampede.cli.progress import Display
    from stampede.workflows.importance import run_importance

    with Display() as display:
        result = run_importance(
            run,
            data=data,
            split=split,
            repeats=repeats,
            seed=seed,
            out=out,
            force=force,
            device=device,
            threads=threads,
            progress=display,
        )
    if result.derived:
        say(
            f"{', '.join(result.derived)}: made of other columns, each shuffled alone; what several columns "
            "tell is not lost with one of them"
        )
    if json:
        print_json(
            {
                "split": result.split,
                "rows": result.rows,
                "repeats": result.repeats,
                "auc": result.auc,
                "logloss": result.logloss,
                "columns": [
                    {
                        "column": one.column,
                        "kind": one.kind,
                        "auc_drop": _document(one.auc_drop),
                        "logloss_rise": _document(one.logloss_rise),
                    }
                    for one in result.columns
                ],
            }
        )
        return
    typer.echo(
        f"split {result.split}, {result.rows:,} rows: AUC {number(result.auc)}, "
        f"log loss {number(result.logloss)}; each column shuffled {result.repeats} times"
    )
    print_table(
        ("column", "kind", "AUC drop", "log loss rise"),
        [(one.column, one.kind, _text(one.auc_drop), _text(one.logloss_rise)) for one in result.columns],
        left=("kind",),
    )
    if out is not None:
        typer.echo(out)


def _document(effect: Effect | None) -> dict[str, Any] | None:
    return None if effect is None else {"mean": effect.mean, "standard_deviation": effect.deviation}


def _text(effect: Effect | None) -> str:
    if effect is None:
        return "undefined"
    return f"{effect.mean:+.5f}" + ("" if effect.deviation is None else f" ±{effect.deviation:.5f}")
