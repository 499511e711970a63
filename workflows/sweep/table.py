"""The figures of a study: each point of each series over its seeds, and against its base batch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from stampede.training.config import TrainConfig
from stampede.workflows.sweep.grid import Point, Series, identity
from stampede.workflows.sweep.measures import FrequencyBin, Measures, mean, merge_bins
from stampede.workflows.sweep.study import Outcome, Study, names_of

TARGET_BELOW_BASE = 0.001

PointStatus = Literal["finished", "diverged", "failed", "missing"]


@dataclass(frozen=True)
class Summary:
    """Mean and standard deviation (of a sample; None of one) over ``n`` seeds."""

    mean: float
    deviation: float | None
    n: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Summary | None:
        """Summarise numbers, without those that are None; None of nothing."""
        numbers = [value for value in values if value is not None]
        if not numbers:
            return None
        middle = sum(numbers) / len(numbers)
        if len(numbers) == 1:
            return cls(middle, None, 1)
        variance = sum((number - middle) ** 2 for number in numbers) / (len(numbers) - 1)
        return cls(middle, math.sqrt(variance), len(numbers))

    @property
    def error(self) -> float | None:
        """Standard error of the mean."""
        return None if self.deviation is None else self.deviation / math.sqrt(self.n)


@dataclass(frozen=True)
class StudyPoint:
    """One point: its run, what it was trained with, what became of it."""

    point: Point
    name: str
    config: TrainConfig
    status: PointStatus
    outcome: Outcome | None
    measures: Measures | None

    def metric(self, split: str, name: str) -> float | None:
        """Return a metric of the best epoch on ``valid`` or ``test``; None where there is none."""
        metrics = None if self.measures is None else getattr(self.measures, split)
        return None if metrics is None else metrics[name]

    @property
    def seconds(self) -> float | None:
        """Seconds of training; those of its last process, evaluation with them, where no others are known."""
        if self.measures is not None and self.measures.seconds is not None:
            return self.measures.seconds
        return None if self.outcome is None else self.outcome.seconds


@dataclass(frozen=True)
class TimeToTarget:
    """How long the seeds that reached the target AUC took: mean epochs and seconds of training."""

    target: float
    reached: int
    epochs: float | None
    seconds: float | None


@dataclass(frozen=True)
class Cell:
    """A batch size of a series, over its seeds.

    Attributes
    ----------
    metrics:
        ``auc`` and ``logloss`` of the study's split, and ``valid_auc`` … ``test_logloss`` of each.
    to_base:
        ``auc`` and ``logloss``, minus that of the base batch with the same seed; None without such pairs.
    """

    series: Series
    batch_size: int
    points: tuple[StudyPoint, ...]
    metrics: dict[str, Summary | None]
    to_base: dict[str, Summary | None]
    steps: float | None
    seconds: float | None
    rows_per_second: float | None
    clipped_share: float | None
    clipped_share_of_batch: float | None
    frequencies: tuple[FrequencyBin, ...]
    time_to_target: TimeToTarget | None

    @property
    def config(self) -> TrainConfig:
        """The values of its runs; they differ by the seed alone."""
        return self.points[0].config

    def count(self, status: PointStatus) -> int:
        """Return how many of its seeds have that status."""
        return sum(point.status == status for point in self.points)


@dataclass(frozen=True)
class StudyTable:
    """All figures of a study.

    Attributes
    ----------
    split:
        The one that ``auc`` and ``logloss`` are of: test, or valid where there is no test split.
    targets:
        Model -> the valid AUC that time to target is measured to.
    """

    study: Study
    split: str
    points: tuple[StudyPoint, ...]
    cells: tuple[Cell, ...]
    targets: dict[str, float]

    @property
    def series(self) -> list[Series]:
        """The series, in the order in which they were asked for."""
        return list(dict.fromkeys(cell.series for cell in self.cells))

    def of_series(self, series: Series) -> list[Cell]:
        """Return the cells of a series, by batch size."""
        return [cell for cell in self.cells if cell.series == series]

    @property
    def has_base(self) -> bool:
        """Whether the base batch is a point of the study."""
        return any(cell.batch_size == self.study.base_batch_size for cell in self.cells)


def ended_at_their_best(table: StudyTable) -> str | None:
    """Say how many runs had their best epoch last, so that more epochs may do better; None where none had."""
    runs = {point.name: point for point in table.points if point.status == "finished"}.values()
    cut = [
        run
        for run in runs
        if run.measures is not None
        and run.outcome is not None
        and run.measures.best_epoch == run.outcome.epochs == run.config.epochs
        and run.metric("valid", "auc") is not None
    ]
    if not cut:
        return None
    return (
        f"{len(cut)} of {len(runs)} runs had their best epoch last: more --epochs may do better, and large "
        "batches, which take fewer steps an epoch, want more of them"
    )


def tabulate(study: Study, *, target_auc: float | None = None) -> StudyTable:
    """Read what has been trained of a study.

    Parameters
    ----------
    target_auc:
        The valid AUC that time is measured to. None takes, for each model, the highest mean of a series at
        the base batch, minus :data:`TARGET_BELOW_BASE`.
    """
    points = read_points(study)
    has_test = any(point.metric("test", "auc") is not None for point in points)
    split = "test" if has_test else "valid"
    targets = _targets(points, study.base_batch_size) if target_auc is None else {}
    if target_auc is not None:
        targets = dict.fromkeys((point.point.series.model for point in points), target_auc)
    groups: dict[tuple[Series, int], list[StudyPoint]] = {}
    for point in points:
        groups.setdefault((point.point.series, point.point.batch_size), []).append(point)
    ordered = sorted(groups, key=lambda key: key[1])
    series = dict.fromkeys(point.point.series for point in points)
    cells = [
        _cell(
            groups[key],
            base=groups.get((key[0], study.base_batch_size), []),
            split=split,
            target=targets.get(key[0].model),
        )
        for one in series
        for key in ordered
        if key[0] == one
    ]
    return StudyTable(study, split, tuple(points), tuple(cells), targets)


def read_points(study: Study) -> list[StudyPoint]:
    """Return all points of a study with what is on disk of them."""
    configs, outcomes = study.points(), study.outcomes()
    names = names_of(configs, outcomes)
    measured: dict[str, Measures] = {}
    points = []
    for point, config in configs.items():
        name, outcome = names[point], outcomes.get(identity(config))
        if outcome is not None and name not in measured:
            measured[name] = Measures.read(study.run_folder(name))
        points.append(
            StudyPoint(
                point=point,
                name=name,
                config=config,
                status="missing" if outcome is None else outcome.status,
                outcome=outcome,
                measures=measured.get(name),
            )
        )
    return points


def _targets(points: Sequence[StudyPoint], base: int) -> dict[str, float]:
    values: dict[str, dict[Series, list[float]]] = {}
    for point in points:
        auc = point.metric("valid", "auc") if point.status == "finished" else None
        if point.point.batch_size == base and auc is not None:
            values.setdefault(point.point.series.model, {}).setdefault(point.point.series, []).append(auc)
    return {
        model: max(sum(aucs) / len(aucs) for aucs in series.values()) - TARGET_BELOW_BASE
        for model, series in values.items()
    }


def _cell(
    points: Sequence[StudyPoint], *, base: Sequence[StudyPoint], split: str, target: float | None
) -> Cell:
    finished = [point for point in points if point.status == "finished"]
    outcomes = [point.outcome for point in finished if point.outcome is not None]
    measures = [point.measures for point in finished if point.measures is not None]
    of_base = {point.point.seed: point for point in base if point.status == "finished"}
    is_base = bool(base) and base[0].point == points[0].point
    pairs = [] if is_base else [(p, of_base[p.point.seed]) for p in finished if p.point.seed in of_base]
    names = ("auc", "logloss")
    return Cell(
        series=points[0].point.series,
        batch_size=points[0].point.batch_size,
        points=tuple(points),
        metrics={name: Summary.of(point.metric(split, name) for point in finished) for name in names}
        | {
            f"{one}_{name}": Summary.of(point.metric(one, name) for point in finished)
            for one in ("valid", "test")
            for name in names
        },
        to_base={
            name: Summary.of(_minus(p.metric(split, name), b.metric(split, name)) for p, b in pairs)
            for name in names
        },
        steps=mean(outcome.steps for outcome in outcomes if outcome.steps is not None),
        seconds=mean(point.seconds for point in finished if point.seconds is not None),
        rows_per_second=mean(
            outcome.samples_per_second for outcome in outcomes if outcome.samples_per_second is not None
        ),
        clipped_share=mean(m.clipped_share for m in measures if m.clipped_share is not None),
        clipped_share_of_batch=mean(
            m.clipped_share_of_batch for m in measures if m.clipped_share_of_batch is not None
        ),
        frequencies=merge_bins(entry for m in measures for entry in m.frequencies),
        time_to_target=None if target is None or not measures else _time_to(target, measures),
    )


def _time_to(target: float, measures: Sequence[Measures]) -> TimeToTarget:
    reached = [epoch for m in measures if (epoch := m.first_epoch_at(target)) is not None]
    return TimeToTarget(
        target=target,
        reached=len(reached),
        epochs=mean(epoch.epoch for epoch in reached),
        seconds=mean(epoch.seconds for epoch in reached if epoch.seconds is not None),
    )


def _minus(value: float | None, other: float | None) -> float | None:
    return None if value is None or other is None else value - other


HYPER_PARAMETERS = ("learning_rate", "embedding_learning_rate", "l2", "zeta", "warmup_epochs")


def document_of(table: StudyTable) -> dict[str, Any]:
    """Return a table as a JSON document."""
    study = table.study
    return {
        "study": str(study.path),
        "dataset": study.dataset,
        "fingerprint": study.fingerprint,
        "recipe": study.recipe_name,
        "base_batch_size": study.base_batch_size,
        "fixed": study.fixed,
        "split": table.split,
        "target_auc": table.targets,
        "table": [_document_of_cell(cell) for cell in table.cells],
        "points": [row_of_point(point) for point in table.points],
    }


def _document_of_cell(cell: Cell) -> dict[str, Any]:
    return {
        "model": cell.series.model,
        "rule": str(cell.series.rule),
        "clip": cell.series.clip,
        "batch_size": cell.batch_size,
        **{name: cell.count(name) for name in ("finished", "diverged", "failed", "missing")},
        **{name: getattr(cell.config, name) for name in HYPER_PARAMETERS},
        **{name: _document_of_summary(summary) for name, summary in cell.metrics.items()},
        "to_base": {
            name: None
            if summary is None
            else {"mean": summary.mean, "standard_error": summary.error, "n": summary.n}
            for name, summary in cell.to_base.items()
        },
        "steps": cell.steps,
        "seconds": cell.seconds,
        "rows_per_second": cell.rows_per_second,
        "clipped_share": cell.clipped_share,
        "clipped_share_of_batch": cell.clipped_share_of_batch,
        "clipped_by_frequency": [
            {
                "from": entry.first,
                "to": entry.last,
                "rows": entry.rows,
                "clipped": entry.clipped,
                "mean_factor": entry.mean_factor,
            }
            for entry in cell.frequencies
        ],
        "time_to_target": None if cell.time_to_target is None else asdict(cell.time_to_target),
    }


def _document_of_summary(summary: Summary | None) -> dict[str, Any] | None:
    if summary is None:
        return None
    return {"mean": summary.mean, "standard_deviation": summary.deviation, "n": summary.n}


def row_of_point(point: StudyPoint) -> dict[str, Any]:
    """Return a point as a flat row: what the CSV file has of it."""
    outcome, measures, series = point.outcome, point.measures, point.point.series
    return {
        "model": series.model,
        "rule": str(series.rule),
        "clip": series.clip,
        "batch_size": point.point.batch_size,
        "seed": point.point.seed,
        "run": point.name,
        "status": point.status,
        "reason": None if outcome is None else outcome.reason,
        **{name: getattr(point.config, name) for name in HYPER_PARAMETERS},
        **{
            f"{split}_{name}": point.metric(split, name)
            for split in ("valid", "test")
            for name in ("auc", "logloss")
        },
        "best_epoch": None if measures is None else measures.best_epoch,
        "epochs": None if outcome is None else outcome.epochs,
        "steps": None if outcome is None else outcome.steps,
        "seconds": point.seconds,
        "rows_per_second": None if outcome is None else outcome.samples_per_second,
        "clipped_share": None if measures is None else measures.clipped_share,
        "clipped_share_of_batch": None if measures is None else measures.clipped_share_of_batch,
    }


def by_model(cells: Sequence[Cell]) -> Mapping[str, list[Cell]]:
    """Return cells by model."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.series.model, []).append(cell)
    return groups
