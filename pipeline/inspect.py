"""What a dataset holds: sizes, frequencies, null and unseen shares, skew."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stampede.pipeline.dataset import NULL_ID, UNSEEN_ID, Dataset
from stampede.pipeline.vocabulary import Vocabulary

TOP_VALUES = 5


@dataclass(frozen=True)
class FieldSummary:
    """One categorical field. Shares are of rows, between 0 and 1.

    Attributes
    ----------
    rows:
        Rows that were fitted on.
    distinct:
        Values with an id of their own.
    size:
        Ids in all.
    null_share, rare_share:
        Share of the fitted rows whose value is empty, or had too few occurrences for an id of its own.
    unseen_share_of_test:
        Share of the test rows whose value has no id of its own: it was unseen or rare in training. None
        without a test split, or where such values share hash buckets.
    top_values:
        The most frequent values with their share.
    top_10_share:
        Share of the ten most frequent ids.
    ids_for_90_percent:
        The least number of ids that hold nine rows in ten: small for a field with a heavy head.
    """

    name: str
    rows: int
    distinct: int
    size: int
    null_share: float
    rare_share: float
    unseen_share_of_test: float | None
    top_values: tuple[tuple[str, float], ...]
    top_10_share: float
    ids_for_90_percent: int


def summarise_fields(dataset: Dataset) -> list[FieldSummary]:
    """Summarise every categorical field of a dataset."""
    unseen: dict[str, float] = {}
    if dataset.fields and "test" in dataset.rows and not dataset.manifest.hash_buckets:
        share = (pl.col(dataset.fields) == UNSEEN_ID).mean()
        unseen = dataset.read("test", [share]).row(0, named=True)
    return [
        _summarise(name, Vocabulary.load(dataset.vocabulary_file(name)), unseen.get(name))
        for name in dataset.fields
    ]


def _summarise(name: str, vocabulary: Vocabulary, unseen_share: float | None) -> FieldSummary:
    counts = vocabulary.counts
    rows = int(counts.sum())
    descending = np.sort(counts)[::-1]
    held = np.cumsum(descending)
    kept = vocabulary.value_counts
    top = np.argsort(-kept, kind="stable")[:TOP_VALUES]
    values, shares = vocabulary.values[top.tolist()].to_list(), kept[top] / rows
    return FieldSummary(
        name=name,
        rows=rows,
        distinct=len(vocabulary.values),
        size=vocabulary.size,
        null_share=float(counts[NULL_ID] / rows),
        rare_share=float(counts[UNSEEN_ID] / rows),
        unseen_share_of_test=unseen_share,
        top_values=tuple(zip(values, shares.tolist(), strict=True)),
        top_10_share=float(descending[:10].sum() / rows),
        ids_for_90_percent=int(np.searchsorted(held, 0.9 * rows) + 1),
    )
