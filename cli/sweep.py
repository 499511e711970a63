"""``stampede sweep``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stampede.cli.common import Debug, Force, Json, number, print_json, print_table, say
from stampede.cli.held_fixed import with_train_options

if TYPE_CHECKING:
    from stampede.workflows.sweep.table import Cell, StudyTable, Summary
    from stampede.workflows.sweep.trials import SearchResult

FAILURE = 1


@with_train_options
def sweep(
    dataset: Annotated[Path, typer.Argument(help="Folder of a dataset.")],
    out: Annotated[Path, typer.Option(help="Folder of the study to make.")],
    batch_sizes: Annotated[str, typer.Option(metavar="LIST", help="Such as 1024,8192,131072.")],
    fixed: dict[str, Any],
    models: Annotated[
        str | None, typer.Option(metavar="LIST", help="Such as deepfm,dcn-v2. [the recipe's]")
    ] = None,
    rules: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Of none, sqrt, linear, n2-lambda, cowclip: how rates and L2 follow the batch size. "
            "[the recipe's]",
        ),
    ] = None,
    clips: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Every rule with each of them. [cowclip with the rule cowclip, none with others]",
        ),
    ] = None,
    seeds: Annotated[
        str, typer.Option(metavar="N|LIST", help="How many seeds (0, 1, …), or a list such as 0,5,7.")
    ] = "3",
    recipe: Annotated[
        str | None,
        typer.Option(help="criteo, avazu, small or a TOML file: the values at the base batch. [as train]"),
    ] = None,
    base_batch_size: Annotated[
        int | None, typer.Option(help="The batch size that the recipe's values are of. [the recipe's]")
    ] = None,
    target_auc: Annotated[
        float | None,
        typer.Option(
            help="Valid AUC that time is measured to. [0.001 below the best series at the base batch]"
        ),
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at a time. [one a GPU; one on a CPU]")] = None,
    devices: Annotated[
        str | None, typer.Option(metavar="LIST", help="GPUs to use, such as 0,1. [all]")
    ] = None,
    search: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Instead: so many trials around the rule's values, by the valid AUC, for one model, batch "
            "size and rule.",
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with the study at --out; lists may be longer than before."),
    ] = False,
    force: Force = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Train over batch sizes, rules and seeds, and sum up as one study.

    Every option of train may be given too, and is the same for all runs. A run that diverges is part of the
    result; a study that is stopped goes on with --resume.

    Example: stampede sweep data/criteo --batch-sizes 1024,8192 --rules cowclip,none --out studies/batch
    """
    from stampede import StoppedError
    from stampede.cli.study_display import StudyDisplay
    from stampede.workflows.sweep import SweepOptions, run_search, run_sweep
    from stampede.workflows.sweep.table import document_of

    options = SweepOptions(
        recipe=recipe,
        models=models,
        batch_sizes=batch_sizes,
        rules=rules,
        clips=clips,
        seeds=seeds,
        fixed=fixed,
        base_batch_size=base_batch_size,
        devices=None if devices is None else _indices(devices),
        jobs=jobs,
        target_auc=target_auc,
        resume=resume,
        force=force,
    )
    try:
        with StudyDisplay() as display:
            if search is not None:
                result = run_search(
                    dataset, out=out, trials=search, options=options, say=say, observer=display
                )
            else:
                table = run_sweep(dataset, out=out, options=options, say=say, observer=display)
    except (KeyboardInterrupt, StoppedError):
        say(f"stopped: the same command with --resume goes on with {out}")
        raise KeyboardInterrupt from None
    if search is not None:
        _print_search(result, out, json=json)
        return
    if json:
        print_json(document_of(table))
    else:
        _print(table)
        typer.echo(out)
    failed = {point.name for point in table.points if point.status == "failed"}
    if failed:
        say(f"{len(failed)} runs failed: see {out / 'logs'}; the same command with --resume tries them again")
        raise typer.Exit(FAILURE)


def _print_search(result: SearchResult, out: Path, *, json: bool) -> None:
    from dataclasses import asdict

    if json:
        print_json(asdict(result))
        return
    rule, best = result.rule_trial, result.best_trial
    ending = [trial.ending for trial in result.trials]
    typer.echo(
        f"{len(ending)} trials, {ending.count('pruned')} stopped early, {ending.count('diverged')} diverged"
    )
    if best is None:
        typer.echo("no trial came to its end")
        return
    typer.echo(f"the rule's valid AUC  {number(None if rule is None else rule.auc)}")
    typer.echo(f"the best valid AUC    {number(best.auc)}, trial {best.number}")
    print_table(
        ("value", "the rule's", "the best"),
        [(name, f"{value:.4g}", f"{best.values[name]:.4g}") for name, value in result.rule_values.items()],
    )
    typer.echo(f"\n{result.command}")
    typer.echo(out)


def _print(table: StudyTable) -> None:
    from stampede.workflows.sweep.table import ended_at_their_best

    typer.echo(
        f"{table.split} split: mean ± standard deviation over seeds; "
        f"to base: mean difference ± standard error, seed by seed, to batch {table.study.base_batch_size:,}"
    )
    models = list(dict.fromkeys(cell.series.model for cell in table.cells))
    for model in models:
        cells = [cell for cell in table.cells if cell.series.model == model]
        typer.echo(f"\n{model}")
        print_table(
            ("rule", "batch", "AUC", "to base", "log loss", "to base", "seeds"),
            [_quality_row(cell) for cell in cells],
        )
        typer.echo()
        print_table(
            ("rule", "batch", "embedding lr", "L2", "dense lr", "warm-up", "steps", "seconds", "rows/s",
             "clipped", "to target"),
            [_cost_row(cell) for cell in cells],
        )  # fmt: skip
        if model in table.targets:
            typer.echo(f"to target: training until the valid AUC reaches {table.targets[model]:.5f}")
    improving = ended_at_their_best(table)
    if improving is not None:
        typer.echo(f"\n{improving}")


def _quality_row(cell: Cell) -> tuple[str, ...]:
    seeds = [str(cell.count("finished"))]
    seeds += [f"{n} {status}" for status in ("diverged", "failed", "missing") if (n := cell.count(status))]
    return (
        cell.series.label,
        f"{cell.batch_size:,}",
        _mean(cell.metrics["auc"]),
        _difference(cell.to_base["auc"]),
        _mean(cell.metrics["logloss"]),
        _difference(cell.to_base["logloss"]),
        ", ".join(seeds),
    )


def _cost_row(cell: Cell) -> tuple[str, ...]:
    values = cell.config
    return (
        cell.series.label,
        f"{cell.batch_size:,}",
        f"{values.embedding_learning_rate:.3g}",
        f"{values.l2:.3g}",
        f"{values.learning_rate:.3g}",
        f"{values.warmup_epochs:g}",
        _count(cell.steps),
        _count(cell.seconds),
        _count(cell.rows_per_second),
        "" if cell.clipped_share is None else f"{100 * cell.clipped_share:.2g}%",
        _time(cell),
    )


def _time(cell: Cell) -> str:
    """Epochs and seconds to the target, and how many seeds came there where not all did."""
    time = cell.time_to_target
    if time is None or not time.reached or time.epochs is None:
        return "" if time is None else "not reached"
    text = f"{time.epochs:.1f} epochs"
    if time.seconds is not None:
        text += f", {time.seconds:,.0f} s"
    finished = cell.count("finished")
    return text if time.reached == finished else f"{text} ({time.reached} of {finished})"


def _mean(summary: Summary | None) -> str:
    if summary is None:
        return "-"
    spread = "" if summary.deviation is None else f" ±{summary.deviation:.5f}"
    return f"{summary.mean:.5f}{spread}"


def _difference(summary: Summary | None) -> str:
    if summary is None:
        return ""
    spread = "" if summary.error is None else f" ±{summary.error:.5f}"
    return f"{summary.mean:+.5f}{spread}"


def _count(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _indices(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no list of GPUs such as 0,1", param_hint="--devices") from None
