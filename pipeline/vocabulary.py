"""The ids of a categorical field: which values have one, in which order, and how often each occurs."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import polars as pl

from stampede import DatasetError
from stampede.pipeline.dataset import FIRST_VALUE_ID, NULL_ID, UNSEEN_ID
from stampede.pipeline.errors import READ_ERRORS

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Vocabulary:
    """The ids of one field: 0 padding, 1 null, 2 unseen or rare, then the values, then hash buckets.

    Attributes
    ----------
    values:
        String series of the values that were kept; the k-th has id ``3 + k``.
    counts:
        int64 [size]: occurrences of each id among the fitted rows.
    """

    values: pl.Series
    counts: Counts

    @property
    def size(self) -> int:
        """Number of ids, the reserved ones included."""
        return len(self.counts)

    @property
    def buckets(self) -> int:
        """Number of ids that values without one of their own share by hash."""
        return self.size - FIRST_VALUE_ID - len(self.values)

    @classmethod
    def build(
        cls, counted: pl.DataFrame, *, min_count: int = 1, max_size: int | None = None, hash_buckets: int = 0
    ) -> Self:
        """Choose the values that get an id of their own.

        Parameters
        ----------
        counted:
            Columns ``value`` (String; null is the empty value) and ``count``: each distinct value once.
        min_count:
            Values that occur less often are rare.
        max_size:
            Most values that are kept, the most frequent first; None keeps all.
        hash_buckets:
            Number of ids that the other values share; 0 gives them all id 2.
        """
        counted = counted.select(pl.col("value"), pl.col("count").cast(pl.Int64))
        present = counted.filter(pl.col("value").is_not_null())
        ranked = present.sort(["count", "value"], descending=[True, False])
        frequent = ranked.filter(pl.col("count") >= min_count)
        kept = frequent if max_size is None else frequent.head(max_size)
        other = ranked.slice(kept.height)  # rare values sort behind frequent ones, so the rest is a suffix

        counts = np.zeros(FIRST_VALUE_ID + kept.height + hash_buckets, dtype=np.int64)
        counts[NULL_ID] = counted.filter(pl.col("value").is_null())["count"].sum()
        counts[FIRST_VALUE_ID : FIRST_VALUE_ID + kept.height] = kept["count"].to_numpy()
        if hash_buckets:
            buckets = hash_bucket(other["value"], hash_buckets)
            np.add.at(counts, FIRST_VALUE_ID + kept.height + buckets, other["count"].to_numpy())
        else:
            counts[UNSEEN_ID] = other["count"].sum()
        return cls(kept["value"].cast(pl.String), counts)

    @classmethod
    def load(cls, file: Path) -> Self:
        """Read a vocabulary file of a dataset or run.

        Raises
        ------
        DatasetError
            It is missing or damaged.
        """
        try:
            frame = pl.read_parquet(file, glob=False).sort("id")
        except READ_ERRORS as error:
            reason = "is missing" if isinstance(error, FileNotFoundError) else "is damaged"
            raise DatasetError(f"{file} {reason}") from error
        values = frame.filter(pl.col("value").is_not_null())["value"]
        return cls(values, frame["count"].to_numpy().copy())

    def save(self, file: Path) -> None:
        """Write the vocabulary file: id int32, value string (null for ids without one), count int64."""
        none = pl.Series([None], dtype=pl.String)
        values = [none.new_from_index(0, FIRST_VALUE_ID), self.values, none.new_from_index(0, self.buckets)]
        ids = np.arange(self.size, dtype=np.int32)
        frame = pl.DataFrame({"id": ids, "value": pl.concat(values), "count": self.counts})
        frame.write_parquet(file)

    def ids(self, value: pl.Expr) -> pl.Expr:
        """Int32 ids of the values (String) of an expression."""
        known = value.cast(pl.Enum(self.values), strict=False).to_physical().cast(pl.Int32) + FIRST_VALUE_ID
        unknown = self._bucket_ids(value, known) if self.buckets else pl.lit(UNSEEN_ID, pl.Int32)
        null = pl.lit(NULL_ID, pl.Int32)
        return pl.when(value.is_null()).then(null).otherwise(pl.coalesce(known, unknown))

    def counts_of(self, ids: pl.Expr) -> pl.Expr:
        """Int32 counts of the ids (Int32, none null) of an expression."""
        return look_up(ids, np.minimum(self.counts, np.iinfo(np.int32).max).astype(np.int32))

    def _bucket_ids(self, value: pl.Expr, known: pl.Expr) -> pl.Expr:
        first = FIRST_VALUE_ID + len(self.values)

        def hash_unknown(values: pl.Series) -> pl.Series:
            distinct = values.drop_nulls().unique()
            ids = pl.Series(hash_bucket(distinct, self.buckets) + first, dtype=pl.Int32)
            return values.replace_strict(distinct, ids, default=None, return_dtype=pl.Int32)

        unknown = pl.when(known.is_null()).then(value)
        return unknown.map_batches(hash_unknown, return_dtype=pl.Int32, is_elementwise=True)


def look_up(ids: pl.Expr, table: npt.NDArray[np.int32]) -> pl.Expr:
    """Int32 entries of a table at the ids (integers, none null) of an expression."""
    return ids.map_batches(
        lambda batch: pl.Series(table[batch.to_numpy()]), return_dtype=pl.Int32, is_elementwise=True
    )


def hash_bucket(values: pl.Series, buckets: int) -> Counts:
    """Bucket of each value: blake2b of its bytes, 8 bytes, little-endian, modulo the number of buckets."""
    digests = (hashlib.blake2b(value.encode(), digest_size=8).digest() for value in values)
    return np.fromiter((int.from_bytes(d, "little") % buckets for d in digests), np.int64, len(values))


def count_values(rows: pl.LazyFrame, values: dict[str, pl.Expr]) -> dict[str, pl.DataFrame]:
    """Count the distinct values of each field.

    Parameters
    ----------
    rows:
        The rows to fit on.
    values:
        For each field, the expression of its value (String, null where empty).

    Returns
    -------
    dict
        For each field a frame of ``value`` and ``count``, in no order.
    """
    plans = [rows.group_by(value.alias("value")).agg(pl.len().alias("count")) for value in values.values()]
    return dict(zip(values, pl.collect_all(plans, engine="streaming"), strict=True))
