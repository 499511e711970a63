"""The page of a study: ``study.html``."""

from __future__ import annotations

from collections.abc import Sequence

from stampede.workflows.page import Block, Facts, Note, Page, Section, Table
from stampede.workflows.sweep.charts import (
    clipped_chart,
    difference_chart,
    frequency_charts,
    metric_chart,
    time_chart,
)
from stampede.workflows.sweep.table import Cell, StudyTable, Summary, by_model, ended_at_their_best
from stampede.workflows.sweep.trials import read_search, search_section


def study_page(table: StudyTable) -> Page:
    """Return the page of a study."""
    study, search = table.study, read_search(table.study.path)
    has_runs = search is None or any(point.status != "missing" for point in table.points)
    sections = [
        _overview(table),
        *(_model_section(table, model, cells) for model, cells in by_model(table.cells).items()),
    ]
    return Page(
        title=f"Study {study.path.absolute().name}",
        subtitle=f"Batch sizes and rules on {study.dataset}, recipe {study.recipe_name} at batch "
        f"{study.base_batch_size:,}",
        sections=[*(sections if has_runs else []), *([] if search is None else [search_section(search)])],
    )


def _overview(table: StudyTable) -> Section:
    runs = {point.name: point for point in table.points}
    lost = {status: sum(run.status == status for run in runs.values()) for status in _WHAT_IS_MISSING}
    seconds = sum(run.seconds or 0.0 for run in runs.values())
    blocks: list[Block] = [
        Facts(
            [
                ("runs", f"{sum(run.status == 'finished' for run in runs.values())}", f"of {len(runs)}"),
                ("points", f"{len(table.points)}", "those with the same values share a run"),
                ("diverged", f"{lost['diverged']}"),
                ("seeds", f"{len({point.point.seed for point in table.points})}"),
                (
                    "time of all runs",
                    f"{seconds / 3600:.1f} h" if seconds > 3600 else f"{seconds / 60:.1f} min",
                ),
            ]
        )
    ]
    blocks += [
        Note(f"{count} {'run' if count == 1 else 'runs'} {_WHAT_IS_MISSING[status]}")
        for status, count in lost.items()
        if count and status != "diverged"
    ]
    improving = ended_at_their_best(table)
    if improving is not None:
        blocks.append(Note(f"{improving}."))
    if not table.has_base:
        blocks.append(
            Note(
                f"The base batch, {table.study.base_batch_size:,}, is not part of the study, so there are no "
                "differences to it: add it to --batch-sizes."
            )
        )
    fixed = ", ".join(f"{name} {_value(value)}" for name, value in table.study.fixed.items())
    return Section(
        "",
        "Each rule says how learning rates and L2 follow the batch size; with cowclip the gradients of the "
        "embeddings are clipped as well. Differences are taken seed by seed: the runs of a seed begin alike. "
        f"Metrics are of the {table.split} split, at each run's best epoch."
        + (f"\n\nHeld fixed: {fixed}." if fixed else ""),
        blocks,
    )


_WHAT_IS_MISSING = {
    "diverged": "diverged",
    "failed": "failed: the logs of the study say why, and --resume tries them again",
    "missing": "not trained yet: --resume goes on",
}


def _model_section(table: StudyTable, model: str, cells: Sequence[Cell]) -> Section:
    base = table.study.base_batch_size
    blocks: list[Block] = [
        metric_chart(cells, name, split=table.split, base=base) for name in ("auc", "logloss")
    ]
    if any(cell.to_base["auc"] for cell in cells):
        blocks += [difference_chart(cells, name, base=base) for name in ("auc", "logloss")]
    if model in table.targets:
        blocks.append(time_chart(cells, target=table.targets[model]))
    clipped, frequencies = clipped_chart(cells), frequency_charts(cells)
    blocks += [block for block in (clipped, frequencies) if block is not None]
    return Section(model, "", [*blocks, _results(table, cells), _hyper_parameters(cells)])


def _results(table: StudyTable, cells: Sequence[Cell]) -> Table:
    return Table(
        title="Results",
        header=(
            "rule, batch",
            "AUC",
            "to base",
            "log loss",
            "to base",
            "clipped",
            "rows/s",
            "seconds",
            "seeds",
        ),
        rows=[
            (
                f"{cell.series.label}, {cell.batch_size:,}",
                _mean(cell.metrics["auc"]),
                _difference(cell.to_base["auc"]),
                _mean(cell.metrics["logloss"]),
                _difference(cell.to_base["logloss"]),
                "" if cell.clipped_share is None else f"{100 * cell.clipped_share:.3g}%",
                "" if cell.rows_per_second is None else f"{cell.rows_per_second:,.0f}",
                "" if cell.seconds is None else f"{cell.seconds:,.0f}",
                _seeds(cell),
            )
            for cell in cells
        ],
        marked=[i for i, cell in enumerate(cells) if cell.count("diverged")],
        caption=f"{table.split} split: mean ± standard deviation over the seeds that finished; to base: mean "
        "difference ± standard error. Rows that are set off have runs that diverged.",
    )


def _hyper_parameters(cells: Sequence[Cell]) -> Table:
    return Table(
        title="Hyper-parameters",
        header=("rule, batch", "embedding lr", "L2", "dense lr", "zeta", "warm-up epochs", "epochs", "steps"),
        rows=[
            (
                f"{cell.series.label}, {cell.batch_size:,}",
                f"{cell.config.embedding_learning_rate:.4g}",
                f"{cell.config.l2:.4g}",
                f"{cell.config.learning_rate:.4g}",
                f"{cell.config.zeta:.4g}" if cell.config.clip == "cowclip" else "",
                f"{cell.config.warmup_epochs:g}",
                f"{cell.config.epochs}",
                "" if cell.steps is None else f"{cell.steps:,.0f}",
            )
            for cell in cells
        ],
        caption="What the rule gives at each batch size; steps are those taken, as a mean over seeds.",
        folded=True,
    )


def _seeds(cell: Cell) -> str:
    parts = [str(cell.count("finished"))]
    parts += [f"{n} {status}" for status in ("diverged", "failed", "missing") if (n := cell.count(status))]
    return ", ".join(parts)


def _mean(summary: Summary | None) -> str:
    if summary is None:
        return ""
    return f"{summary.mean:.5f}" + ("" if summary.deviation is None else f" ± {summary.deviation:.5f}")


def _difference(summary: Summary | None) -> str:
    if summary is None:
        return ""
    return f"{summary.mean:+.5f}" + ("" if summary.error is None else f" ± {summary.error:.5f}")


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds > 3600 else f"{seconds / 60:.1f} min"


def _value(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
