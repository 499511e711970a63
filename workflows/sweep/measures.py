"""What one run of a study came to, read from its records."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

METRICS = "metrics.jsonl"
TIMINGS = "timings.jsonl"


@dataclass(frozen=True)
class EpochRecord:
    """The end of an epoch: its metrics on the valid split, and the seconds of training up to it."""

    epoch: int
    step: int
    auc: float | None
    logloss: float | None
    seconds: float | None


@dataclass(frozen=True)
class FrequencyBin:
    """Ids that occur ``first`` to ``last`` times in the training split (None: no end), over some batches.

    Attributes
    ----------
    rows, clipped:
        Rows of tables in those batches, and how many of them were clipped.
    mean_factor:
        Mean of ``min(1, threshold / norm)`` over the rows; 1 is not clipped.
    """

    first: int
    last: int | None
    rows: int
    clipped: int
    mean_factor: float | None


@dataclass(frozen=True)
class Measures:
    """A run's records.

    Attributes
    ----------
    valid, test:
        Metrics of the best epoch, as the records have them; None without the split.
    seconds:
        Of training, over the whole run, however often it was stopped.
    clipped_share:
        Mean over the logged steps of the share of rows of the tables that was clipped.
    clipped_share_of_batch:
        The same over the rows of the batch, at the steps where the tables were looked at.
    frequencies:
        The same by how often an id occurs.
    """

    valid: dict[str, Any] | None
    test: dict[str, Any] | None
    best_epoch: int | None
    epochs: tuple[EpochRecord, ...]
    seconds: float | None
    clipped_share: float | None
    clipped_share_of_batch: float | None
    frequencies: tuple[FrequencyBin, ...]

    @classmethod
    def read(cls, run: Path) -> Measures:
        """Read the records of a run; what it did not write, or not yet, is None or empty."""
        records = list(_lines(run / METRICS))
        seconds = {line["step"]: line["seconds"] for line in _lines(run / TIMINGS)}
        of_kind = {
            kind: [record for record in records if record["kind"] == kind]
            for kind in ("step", "tables", "epoch", "result")
        }
        result: dict[str, Any] = of_kind["result"][-1] if of_kind["result"] else {}
        bins = merge_bins(
            FrequencyBin(
                first=entry["from"],
                last=entry["to"],
                rows=entry["rows"],
                clipped=entry["clipped"],
                mean_factor=entry["mean_factor"],
            )
            for record in of_kind["tables"]
            for entry in record["frequency"] or ()
        )
        rows = sum(entry.rows for entry in bins)
        return cls(
            valid=result.get("valid"),
            test=result.get("test"),
            best_epoch=result.get("epoch"),
            epochs=tuple(
                EpochRecord(
                    epoch=record["epoch"],
                    step=record["step"],
                    auc=(record["valid"] or {}).get("auc"),
                    logloss=(record["valid"] or {}).get("logloss"),
                    seconds=seconds.get(record["step"]),
                )
                for record in of_kind["epoch"]
            ),
            seconds=max(seconds.values(), default=None),
            clipped_share=mean(
                record["clipped_share"] for record in of_kind["step"] if record["clipped_share"] is not None
            ),
            clipped_share_of_batch=sum(entry.clipped for entry in bins) / rows if rows else None,
            frequencies=bins,
        )

    def first_epoch_at(self, target: float) -> EpochRecord | None:
        """Return the first epoch whose valid AUC is at least ``target``."""
        return next((epoch for epoch in self.epochs if epoch.auc is not None and epoch.auc >= target), None)


def merge_bins(bins: Iterable[FrequencyBin]) -> tuple[FrequencyBin, ...]:
    """Add up bins of the same frequencies, by frequency."""
    groups: dict[tuple[int, int | None], list[FrequencyBin]] = {}
    for entry in bins:
        groups.setdefault((entry.first, entry.last), []).append(entry)
    merged = []
    for (first, last), group in sorted(groups.items(), key=lambda item: item[0][0]):
        rows = sum(entry.rows for entry in group)
        factors = sum(entry.rows * entry.mean_factor for entry in group if entry.mean_factor is not None)
        merged.append(
            FrequencyBin(
                first=first,
                last=last,
                rows=rows,
                clipped=sum(entry.clipped for entry in group),
                mean_factor=factors / rows if rows else None,
            )
        )
    return tuple(merged)


def mean(values: Iterable[float]) -> float | None:
    """Return the mean; None of nothing."""
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else None


def _lines(file: Path) -> Iterable[dict[str, Any]]:
    """Read lines of JSON; one that is cut off (its run was killed) is left out."""
    try:
        text = file.read_text("utf-8")
    except FileNotFoundError:
        return
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            continue
