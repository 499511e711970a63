"""``stampede compare``: runs on the same rows, and whether they differ by more than noise."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from stampede import CheckpointError, ConfigError
from stampede.pipeline.dataset import Dataset, Split
from stampede.pipeline.progress import Progress, Silent
from stampede.training.bootstrap import (
    LEVEL,
    DeLong,
    Float64,
    Interval,
    Resampled,
    ScoredRows,
    bootstrap,
    delong,
    two_sided_p,
)
from stampede.training.config import Device
from stampede.training.evaluation import EVALUATION_BATCH, logits_of
from stampede.training.loader import Loader, open_loader
from stampede.training.rowgroups import IdTables
from stampede.workflows.growth import dataset_of
from stampede.workflows.run import Run

LOADER_MEMORY = 1 << 30

Verdict = Literal["more than noise", "within noise", "undefined"]


@dataclass(frozen=True)
class Estimate:
    """A metric of all rows, and the middle 95% of its resamples; None where it is undefined."""

    value: float | None
    interval: Interval | None


@dataclass(frozen=True)
class ComparedRun:
    """A run, its metrics, and how they scatter."""

    path: Path
    auc: Estimate
    logloss: Estimate


@dataclass(frozen=True)
class Difference:
    """A metric of a run minus that of the baseline.

    Attributes
    ----------
    p:
        Two-sided p-value of "no difference", from the paired resamples.
    """

    value: float | None
    interval: Interval | None
    p: float | None

    @property
    def verdict(self) -> Verdict:
        """Whether resampled rows would hardly ever turn the difference around."""
        if self.p is None:
            return "undefined"
        return "more than noise" if self.p < 1 - LEVEL else "within noise"


@dataclass(frozen=True)
class RunDifference:
    """A run against the baseline; ``delong`` is the closed form for the AUC."""

    path: Path
    auc: Difference
    logloss: Difference
    delong: DeLong | None


@dataclass(frozen=True)
class Comparison:
    """All runs on the same rows, and the differences to the baseline."""

    dataset: Path
    split: Split
    rows: int
    resamples: int
    baseline: Path
    runs: tuple[ComparedRun, ...]
    differences: tuple[RunDifference, ...]


def run_compare(
    paths: Sequence[Path],
    *,
    baseline: Path | None = None,
    data: Path | None = None,
    split: Split = "test",
    resamples: int = 1000,
    seed: int = 0,
    device: Device | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Score the same rows with the best epoch of each run, and compare.

    Parameters
    ----------
    baseline:
        The run that the others are compared with; None takes the first.
    data:
        A dataset that all runs can read; None takes the runs' own, which must be one.
    resamples:
        How often the rows are drawn anew; each resample is the same for all runs.

    Raises
    ------
    ConfigError
        Less than two runs, one twice, or a baseline that is none of them.
    CheckpointError
        A run is damaged, or cannot read the dataset, or the runs have different ones.
    DatasetError
        The dataset is missing, damaged or without that split.
    """
    progress = progress or Silent()
    ordered = _ordered(paths, baseline)
    runs = [Run.open(path) for path in ordered]
    dataset, ids = _dataset_of(runs, data)
    labels, logits = _score(runs, dataset, ids, split, device=device, threads=threads, progress=progress)
    rows = [ScoredRows.of(labels, scores) for scores in logits]
    progress.start("bootstrap", resamples * len(labels))
    resampled = bootstrap(
        rows,
        resamples=resamples,
        seed=seed,
        threads=threads or len(os.sched_getaffinity(0)),
        done=lambda number: progress.advance(number * len(labels)),
    )
    compared = tuple(
        ComparedRun(
            path,
            Estimate(one.auc, Interval.of(resampled.auc[i])),
            Estimate(one.logloss, Interval.of(resampled.logloss[i])),
        )
        for i, (path, one) in enumerate(zip(ordered, rows, strict=True))
    )
    return Comparison(
        dataset=dataset.path,
        split=split,
        rows=len(labels),
        resamples=resamples,
        baseline=ordered[0],
        runs=compared,
        differences=tuple(
            _difference(compared[i], compared[0], i, resampled, delong(labels, logits[i], logits[0]))
            for i in range(1, len(compared))
        ),
    )


def _difference(
    run: ComparedRun, base: ComparedRun, place: int, resampled: Resampled, test: DeLong | None
) -> RunDifference:
    return RunDifference(
        path=run.path,
        auc=_paired(run.auc, base.auc, resampled.auc[place] - resampled.auc[0]),
        logloss=_paired(run.logloss, base.logloss, resampled.logloss[place] - resampled.logloss[0]),
        delong=test,
    )


def _paired(one: Estimate, base: Estimate, differences: Float64) -> Difference:
    if one.value is None or base.value is None:
        return Difference(None, None, None)
    return Difference(one.value - base.value, Interval.of(differences), two_sided_p(differences))


def _ordered(paths: Sequence[Path], baseline: Path | None) -> list[Path]:
    """Return the runs with the baseline first."""
    if len(paths) < 2:
        raise ConfigError("compare needs two runs or more: stampede compare RUN RUN...")
    real = [path.resolve() for path in paths]
    for i, path in enumerate(paths):
        if real[i] in real[:i]:
            raise ConfigError(f"{path} is named twice: compare runs that differ")
    if baseline is None:
        return list(paths)
    if baseline.resolve() not in real:
        raise ConfigError(f"--baseline {baseline} is none of the runs to compare")
    first = real.index(baseline.resolve())
    return [paths[first], *(path for i, path in enumerate(paths) if i != first)]


def _dataset_of(runs: Sequence[Run], data: Path | None) -> tuple[Dataset, list[IdTables | None]]:
    """Return the dataset that all runs read, and what each has for its ids."""
    opened = [dataset_of(run, data) for run in runs]
    datasets = [dataset for dataset, _ in opened]
    for run, dataset in zip(runs, datasets, strict=True):
        if dataset.fingerprint != datasets[0].fingerprint:
            raise CheckpointError(
                f"{run.path} was trained on {dataset.path}, and {runs[0].path} on {datasets[0].path}: "
                "name a dataset that both can read with --data"
            )
    return datasets[0], [ids for _, ids in opened]


def _score(
    runs: Sequence[Run],
    dataset: Dataset,
    ids_of_runs: Sequence[IdTables | None],
    split: Split,
    *,
    device: Device | None,
    threads: int | None,
    progress: Progress,
) -> tuple[NDArray[np.int8], list[NDArray[np.float32]]]:
    """Return the labels ``[N]``, and the logits ``[N]`` of each run."""
    loaders: dict[torch.device, Loader] = {}
    scores: list[NDArray[np.float32]] = []
    labels: NDArray[np.int8] = np.empty(0, np.int8)
    for run, ids in zip(runs, ids_of_runs, strict=True):
        place = run.use(device, threads)
        loader = loaders.get(place) if ids is None else None  # with ids of its own, a run has rows of its own
        if loader is None:
            loader = open_loader(
                dataset, split, batch_size=EVALUATION_BATCH, device=place, memory=LOADER_MEMORY, ids=ids
            )
        if ids is None:
            loaders[place] = loader
        progress.start(f"score {run.path.name}", loader.rows)
        logits = np.empty(loader.rows, np.float32)
        labels = np.empty(loader.rows, np.int8)
        done = 0
        for values, batch in logits_of(run.load_model(place), loader):
            stop = done + len(batch)
            logits[done:stop] = values.float().cpu().numpy()
            labels[done:stop] = batch.labels.cpu().numpy()
            progress.advance(len(batch))
            done = stop
        scores.append(logits)
    return labels, scores
