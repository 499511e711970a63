"""``stampede compare``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stampede.cli.common import Debug, Device, Json, Threads, number, print_json, print_table

if TYPE_CHECKING:
    from stampede.training.bootstrap import DeLong, Interval
    from stampede.workflows.compare import ComparedRun, Difference, Estimate, RunDifference


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders of two runs or more.")],
    baseline: Annotated[
        Path | None, typer.Option(help="The run that the others are compared with. [the first]")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="A dataset that all runs can read. [their own, which must be one]")
    ] = None,
    split: Annotated[str, typer.Option(help="train, valid, test, or one that was added.")] = "test",
    bootstrap: Annotated[int, typer.Option(min=100, help="How often the rows are drawn anew.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draws.")] = 0,
    device: Device = None,
    threads: Threads = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Say whether runs differ by more than noise.

    All score the same rows; the rows are drawn anew, for all runs alike, to see how far metrics and
    differences scatter. It is the noise of the rows alone: that of the seed takes runs with several seeds.

    Example: stampede compare runs/deepfm runs/dcn-v2 --split test
    """
    from stampede.cli.progress import Display
    from stampede.workflows.compare import run_compare

    with Display() as display:
        result = run_compare(
            runs,
            baseline=baseline,
            data=data,
            split=split,
            resamples=bootstrap,
            seed=seed,
            device=device,
            threads=threads,
            progress=display,
        )
    if json:
        print_json(
            {
                "dataset": str(result.dataset),
                "split": result.split,
                "rows": result.rows,
                "bootstrap": result.resamples,
                "baseline": str(result.baseline),
                "runs": [_run_document(run) for run in result.runs],
                "differences": [_difference_document(one) for one in result.differences],
            }
        )
        return
    typer.echo(
        f"split {result.split} of {result.dataset}, {result.rows:,} rows, {result.resamples:,} resamples"
    )
    names = _names([run.path for run in result.runs])
    print_table(
        ("run", "AUC", "95% interval", "log loss", "95% interval"),
        [
            (names[run.path], number(run.auc.value), _range(run.auc.interval),
             number(run.logloss.value), _range(run.logloss.interval))
            for run in result.runs
        ],
    )  # fmt: skip
    typer.echo(f"\nagainst {names[result.baseline]}")
    print_table(
        ("run", "metric", "is", "difference", "95% interval", "p"),
        [row for one in result.differences for row in _rows(one, names[one.path])],
        left=("metric", "is"),
    )


def _names(paths: list[Path]) -> dict[Path, str]:
    """Return the last parts of the paths where they tell the runs apart, else the whole paths."""
    short = {path: path.name for path in paths}
    return short if len(set(short.values())) == len(paths) else {path: str(path) for path in paths}


def _rows(one: RunDifference, name: str) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        (name, metric, difference.verdict, _signed(difference.value),
         _range(difference.interval, signed=True), _p(difference.p))
        for metric, difference in (("AUC", one.auc), ("log loss", one.logloss))
    ]  # fmt: skip
    if one.delong is not None:
        test = one.delong
        span = f"{test.low:+.5f} to {test.high:+.5f}"
        rows.insert(1, ("", "  by DeLong", "", _signed(test.difference), span, _p(test.p)))
    return rows


def _run_document(run: ComparedRun) -> dict[str, Any]:
    return {"run": str(run.path), "auc": _estimate(run.auc), "logloss": _estimate(run.logloss)}


def _estimate(estimate: Estimate) -> dict[str, float | None]:
    return {"value": estimate.value, **_ends(estimate.interval)}


def _difference_document(one: RunDifference) -> dict[str, Any]:
    return {
        "run": str(one.path),
        "auc": {**_difference(one.auc), "delong": _delong(one.delong)},
        "logloss": _difference(one.logloss),
    }


def _difference(one: Difference) -> dict[str, Any]:
    return {"difference": one.value, **_ends(one.interval), "p": one.p, "verdict": one.verdict}


def _delong(test: DeLong | None) -> dict[str, float | None] | None:
    if test is None:
        return None
    from dataclasses import asdict
    from math import isfinite

    return {name: value if isfinite(value) else None for name, value in asdict(test).items()}


def _ends(interval: Interval | None) -> dict[str, float | None]:
    return {
        "low": None if interval is None else interval.low,
        "high": None if interval is None else interval.high,
    }


def _range(interval: Interval | None, *, signed: bool = False) -> str:
    if interval is None:
        return ""
    sign = "+" if signed else ""
    return f"{interval.low:{sign}.5f} to {interval.high:{sign}.5f}"


def _signed(value: float | None) -> str:
    return "undefined" if value is None else f"{value:+.5f}"


def _p(value: float | None) -> str:
    return "" if value is None else ("<0.0001" if value < 1e-4 else f"{value:.4f}")
