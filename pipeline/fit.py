"""The fitted rows -> vocabularies and targets, within a budget of memory.

A field with more distinct values than the budget holds is counted in several passes over the rows, each of
which counts a part of the values, chosen by their hash.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import ceil
from pathlib import Path

import polars as pl

from stampede.pipeline.dataset import LABEL
from stampede.pipeline.dense import Collect, collect_streaming
from stampede.pipeline.encode import Encoder
from stampede.pipeline.memory import BYTES_PER_COUNTED_VALUE, BYTES_PER_ENCODED_VALUE
from stampede.pipeline.options import PrepareOptions
from stampede.pipeline.split import SPLIT, split_code
from stampede.pipeline.target import FOLD, OutOfFold, clicks_by_fold, fold_of_row, rates_by_fold
from stampede.pipeline.vocabulary import Lookup, Vocabulary, count_plan, estimate_distinct, mean_length

BYTES_PER_ROW_COUNT = 4

# Fields with this part of the most are looked at closer: are their texts long?
LONG_TEXT = 16


class VocabularyFolder(Mapping[str, Vocabulary]):
    """The vocabularies of a dataset that is being made: all in its folder, some in memory.

    Parameters
    ----------
    folder:
        Where ``C1.parquet`` and the others are written.
    memory:
        Bytes that those in memory may take together; the others are read when they are asked for.

    Attributes
    ----------
    lookup_bytes:
        Memory that looking up the values of a field takes.
    table_bytes:
        Memory that the counts of all ids take, as rows are given them.
    """

    def __init__(self, folder: Path, names: Iterable[str], memory: int) -> None:
        folder.mkdir()
        self._folder = folder
        self._free = memory
        self._held: dict[str, Vocabulary | None] = dict.fromkeys(names)
        self.lookup_bytes: dict[str, int] = {}
        self.table_bytes = 0

    def add(self, name: str, vocabulary: Vocabulary) -> None:
        """Write a vocabulary, and hold it where there is room."""
        vocabulary.save(self._file(name))
        self.lookup_bytes[name] = BYTES_PER_ENCODED_VALUE * len(vocabulary.values) + vocabulary.text_bytes
        self.table_bytes += BYTES_PER_ROW_COUNT * vocabulary.size
        held = vocabulary.memory <= self._free
        self._held[name] = vocabulary if held else None
        self._free -= vocabulary.memory if held else 0

    def __getitem__(self, name: str) -> Vocabulary:
        held = self._held[name]
        return held if held is not None else Vocabulary.load(self._file(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.parquet"


def build_vocabulary(counted: Iterable[pl.DataFrame], options: PrepareOptions) -> Vocabulary:
    """Build a vocabulary as the options ask for; see :meth:`Vocabulary.build`."""
    return Vocabulary.build(
        counted, min_count=options.min_count, max_size=options.max_size, hash_buckets=options.hash_buckets
    )


def passes_to_count(
    rows: pl.LazyFrame, values: Mapping[str, pl.Expr], *, total: int, memory: int
) -> dict[str, int]:
    """Return in how many passes the values of each field are counted, so that the counts fit into memory.

    Parameters
    ----------
    rows:
        The rows whose values are counted, ``total`` of them.
    memory:
        Bytes that vocabularies and counts may take at a time.
    """
    most = max(memory * 3 // 4 // BYTES_PER_COUNTED_VALUE, 1)
    if total <= most:
        return dict.fromkeys(values, 1)
    distinct = estimate_distinct(rows, values)
    many = {name: value for name, value in values.items() if distinct[name] > most // LONG_TEXT}
    for name, length in mean_length(rows, many).items():  # a value with a long text counts as several
        distinct[name] = ceil(distinct[name] * (1 + length / BYTES_PER_COUNTED_VALUE))
    return {name: max(ceil(number / most), 1) for name, number in distinct.items()}


def count_in_parts(
    rows: pl.LazyFrame, value: pl.Expr, parts: int, *, collect: Collect = collect_streaming
) -> Iterator[pl.DataFrame]:
    """Count the distinct values of a field, in several passes over the rows; see :func:`count_plan`."""
    for part in range(parts):
        yield collect(count_plan(rows, value, part=part, parts=parts))


def with_folds(rows: pl.LazyFrame, options: PrepareOptions) -> pl.LazyFrame:
    """Add the fold of each row where something is encoded out of fold."""
    if not options.target_encode:
        return rows
    return rows.with_columns(fold_of_row(options.split.seed, options.folds))


def fit_targets(
    rows: pl.LazyFrame, encoder: Encoder, lookup: Lookup, *, collect: Collect = collect_streaming
) -> tuple[Encoder, OutOfFold | None]:
    """Sum up the clicks of the training rows by id and fold, for each field that is target-encoded.

    Parameters
    ----------
    rows:
        Typed rows with their split and fold.

    Returns
    -------
    Encoder, OutOfFold
        The encoder for other rows, and the rates of these; None where no field is target-encoded.
    """
    train = rows.filter(pl.col(SPLIT) == split_code("train"))
    ids = encoder.ids(encoder.encoding.target_encoded, lookup)
    return sum_targets(train.select(FOLD, LABEL, *ids), encoder, collect=collect)


def sum_targets(
    train: pl.LazyFrame, encoder: Encoder, *, collect: Collect = collect_streaming
) -> tuple[Encoder, OutOfFold | None]:
    """Do the same of training rows that have ids: label, fold, and the id of each such field."""
    encoding = encoder.encoding
    if not encoding.target_encoded:
        return encoder, None
    sizes = {name: encoder.vocabularies[name].size for name in encoding.target_encoded}
    targets, rates = {}, {}
    for name, size in sizes.items():
        counted = collect(clicks_by_fold(train, name))
        targets[name], rates[name] = rates_by_fold(counted, folds=encoding.folds, size=size)
    return replace(encoder, targets=targets), OutOfFold(rates, sizes)
