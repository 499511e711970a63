"""``stampede importance``: what a run loses when one column of its input is shuffled."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from stampede import StampedeError
from stampede.pipeline.dataset import Dataset, Encoding, Split
from stampede.pipeline.encode import cross_name
from stampede.pipeline.progress import Progress, Silent
from stampede.training.batch import Batch
from stampede.training.config import Device
from stampede.training.evaluation import EVALUATION_BATCH, logits_of
from stampede.training.loader import open_loader
from stampede.training.metrics import auc, log_loss, probabilities_of
from stampede.training.models import CTRModel
from stampede.training.resident import DeviceLoader
from stampede.training.rowgroups import IdTables
from stampede.workflows.files import check_free, working_folder
from stampede.workflows.growth import dataset_of
from stampede.workflows.run import Run

LOADER_MEMORY = 1 << 30

Kind = Literal["categorical", "dense"]


@dataclass(frozen=True)
class Effect:
    """How much worse a metric gets: mean and standard deviation (None of one) over the repeats."""

    mean: float
    deviation: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Effect:
        """Summarise one value per repeat."""
        return cls(fmean(values), stdev(values) if len(values) > 1 else None)


@dataclass(frozen=True)
class Importance:
    """What shuffling a column costs: the drop of the AUC (None: undefined) and the rise of the log loss."""

    column: str
    kind: Kind
    auc_drop: Effect | None
    logloss_rise: Effect


@dataclass(frozen=True)
class Importances:
    """All columns of a run, the most important first, and the metrics of the rows as they are.

    Attributes
    ----------
    derived:
        Columns that are made of others, so that shuffling one of them leaves what others tell of it.
    """

    split: Split
    rows: int
    repeats: int
    auc: float | None
    logloss: float
    columns: tuple[Importance, ...]
    derived: tuple[str, ...]


def run_importance(
    run_path: Path,
    *,
    data: Path | None = None,
    split: Split = "test",
    repeats: int = 5,
    seed: int = 0,
    out: Path | None = None,
    force: bool = False,
    device: Device | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Importances:
    """Give the permutation importance of each input column of a run (Breiman 2001), exactly.

    A column is shuffled over all rows of the split, the others stay; the best epoch scores every row anew.
    The rows are read once and stay on the device.

    Parameters
    ----------
    repeats:
        How many shuffles of each column.
    seed:
        Of the shuffles; each depends on the seed, the column's place and the repeat alone.
    out:
        A CSV file to write the table to.

    Raises
    ------
    StampedeError
        The split does not fit the device's memory, or ``out`` cannot be written.
    CheckpointError, DatasetError
        As :func:`stampede.workflows.evaluate.run_evaluate`.
    """
    progress = progress or Silent()
    if out is not None:
        check_free(out, force=force)
    run = Run.open(run_path)
    dataset, ids = dataset_of(run, data)
    place = run.use(device, threads)
    model = run.load_model(place)
    rows = _all_rows(dataset, split, place, ids)
    columns: list[tuple[str, Kind]] = [(name, "dense") for name in dataset.dense_columns]
    columns += [(name, "categorical") for name in dataset.fields]
    progress.start("score", len(rows) * (1 + repeats * len(columns)))
    base = _metrics(model, rows, progress)
    found = []
    for number, (name, kind) in enumerate(columns):
        values = (rows.dense if kind == "dense" else rows.ids)[
            :, number if kind == "dense" else number - len(dataset.dense_columns)
        ]
        found.append(
            _importance(
                model, rows, values, name=name, kind=kind, base=base,
                seeds=[(seed, number, repeat) for repeat in range(repeats)], progress=progress,
            )
        )  # fmt: skip
    found.sort(
        key=lambda one: (one.auc_drop.mean if one.auc_drop is not None else 0.0, one.logloss_rise.mean),
        reverse=True,
    )
    result = Importances(
        split=split,
        rows=len(rows),
        repeats=repeats,
        auc=base[0],
        logloss=base[1],
        columns=tuple(found),
        derived=derived_columns(dataset.manifest.encoding, [name for name, _ in columns]),
    )
    if out is not None:
        write_csv(result, out)
    return result


def derived_columns(encoding: Encoding, columns: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that are made of others: crosses, null flags, counts and click rates of ids."""
    suffixes = ["_null"] * encoding.dense_null_flag + ["_log_count"] * encoding.count_features
    suffixes += ["_target"] * bool(encoding.target_encoded)
    names, crosses = set(columns), {cross_name(*pair) for pair in encoding.crosses}
    return tuple(
        name
        for name in columns
        if name in crosses
        or any(name.endswith(suffix) and name.removesuffix(suffix) in names for suffix in suffixes)
    )


def write_csv(result: Importances, out: Path) -> None:
    """Write the table.

    Raises
    ------
    StampedeError
        The place cannot be written.
    """
    with working_folder(out) as folder:
        file = folder / "importance.csv"
        with file.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(
                ("column", "kind", "auc_drop", "auc_drop_deviation", "logloss_rise", "logloss_rise_deviation")
            )
            for one in result.columns:
                drop = one.auc_drop
                writer.writerow(
                    (
                        one.column,
                        one.kind,
                        None if drop is None else drop.mean,
                        None if drop is None else drop.deviation,
                        one.logloss_rise.mean,
                        one.logloss_rise.deviation,
                    )
                )
        file.replace(out)


def _all_rows(dataset: Dataset, split: Split, place: torch.device, ids: IdTables | None) -> Batch:
    """Return a split on the device, by the ids of the run."""
    loader = open_loader(
        dataset, split, batch_size=EVALUATION_BATCH, device=place, memory=LOADER_MEMORY, ids=ids
    )
    if not isinstance(loader, DeviceLoader):
        raise StampedeError(
            f"the split {split} of {dataset.path}, {loader.rows:,} rows, does not fit the memory of {place}, "
            "which shuffling takes: name a smaller --split"
        )
    return loader.data


def _importance(
    model: CTRModel,
    rows: Batch,
    values: Tensor,
    *,
    name: str,
    kind: Kind,
    base: tuple[float | None, float],
    seeds: Sequence[tuple[int, int, int]],
    progress: Progress,
) -> Importance:
    """Shuffle a column in place, score, and put it back; ``values`` is that column, a view of the rows."""
    kept = values.clone()
    drops, rises = [], []
    for seed in seeds:
        order = torch.from_numpy(np.random.default_rng(seed).permutation(len(rows)))
        values.copy_(kept[order.to(kept.device)])
        area, loss = _metrics(model, rows, progress)
        rises.append(loss - base[1])
        if area is not None and base[0] is not None:
            drops.append(base[0] - area)
    values.copy_(kept)
    return Importance(name, kind, Effect.of(drops) if drops else None, Effect.of(rises))


def _metrics(model: CTRModel, rows: Batch, progress: Progress) -> tuple[float | None, float]:
    """Return AUC and log loss of all rows."""
    logits = np.empty(len(rows), np.float32)
    done = 0
    for values, batch in logits_of(model, rows.split(EVALUATION_BATCH)):
        logits[done : done + len(batch)] = values.float().cpu().numpy()
        done += len(batch)
        progress.advance(len(batch))
    labels = rows.labels.cpu().numpy()
    loss = log_loss(labels, probabilities_of(logits))
    if loss is None:
        raise StampedeError("the split has no rows")
    return auc(labels, logits), loss
