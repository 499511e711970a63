"""The ids of a categorical field: which values have one, in which order, and how often each occurs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import polars as pl

from stampede.pipeline.dataset import FIRST_VALUE_ID, NULL_ID, UNSEEN_ID, read_table

Counts = npt.NDArray[np.int64]

ROWS_PER_GROUP = 1 << 18


@dataclass(frozen=True)
class Vocabulary:
    """The ids of one field: 0 padding, 1 null, 2 unseen or rare, then the values, then hash buckets.

    Values that a vocabulary gained later (:meth:`grown`) follow on the buckets, so no id ever changes.

    Attributes
    ----------
    values:
        String series of the values that were kept; the k-th has id ``3 + k``, or ``3 + k + buckets`` where it
        is one of the last ``after_buckets``.
    counts:
        int64 [size]: occurrences of each id among the fitted rows.
    after_buckets:
        How many of the values have their ids after the hash buckets; 0 where there are no buckets.
    """

    values: pl.Series
    counts: Counts
    after_buckets: int = 0

    @property
    def size(self) -> int:
        """Number of ids, the reserved ones included."""
        return len(self.counts)

    @property
    def buckets(self) -> int:
        """Number of ids that values without one of their own share by hash."""
        return self.size - FIRST_VALUE_ID - len(self.values)

    @property
    def before_buckets(self) -> int:
        """Number of the values whose ids come before the hash buckets."""
        return len(self.values) - self.after_buckets

    @classmethod
    def build(
        cls,
        counted: Iterable[pl.DataFrame],
        *,
        min_count: int = 1,
        max_size: int | None = None,
        hash_buckets: int = 0,
    ) -> Self:
        """Choose the values that get an id of their own.

        Parameters
        ----------
        counted:
            Frames of ``value`` (String; null is the empty value) and ``count``; each distinct value stands
            once, in one of them. They are taken one after the other, and what is rare in one is forgotten
            before the next.
        min_count:
            Values that occur less often are rare.
        max_size:
            Most values that are kept, the most frequent first; None keeps all.
        hash_buckets:
            Number of ids that the other values share; 0 gives them all id 2.
        """
        others = np.zeros(max(hash_buckets, 1), dtype=np.int64)

        def share(other: pl.DataFrame) -> None:
            """Add values without an id of their own to what they share."""
            if hash_buckets:
                np.add.at(others, hash_bucket(other["value"], hash_buckets), other["count"].to_numpy())
            else:
                others[0] += other["count"].sum()

        null = 0
        frequent = [pl.DataFrame(schema={"value": pl.String, "count": pl.Int64})]
        for frame in counted:
            frame = frame.select(pl.col("value").cast(pl.String), pl.col("count").cast(pl.Int64))
            null += int(frame.filter(pl.col("value").is_null())["count"].sum())
            present = frame.drop_nulls("value")
            frequent.append(present.filter(pl.col("count") >= min_count))
            share(present.filter(pl.col("count") < min_count))
        ranked = pl.concat(frequent).sort(["count", "value"], descending=[True, False])
        kept = ranked if max_size is None else ranked.head(max_size)
        share(ranked.slice(kept.height))

        reserved = np.zeros(FIRST_VALUE_ID, dtype=np.int64)
        reserved[NULL_ID] = null
        if not hash_buckets:
            reserved[UNSEEN_ID] = others[0]
        counts = np.concatenate([reserved, kept["count"].to_numpy(), others if hash_buckets else others[:0]])
        return cls(kept["value"], counts)

    def grown(
        self, counted: Iterable[pl.DataFrame], *, min_count: int = 1, max_size: int | None = None
    ) -> Self:
        """Return the vocabulary with the values that further rows bring; every id stays what it is.

        New values get the ids after all others: by descending count in the further rows, ties by ascending
        value bytes. What occurs in the further rows is added to the counts.

        Parameters
        ----------
        counted:
            The values of the further rows, as for :meth:`build`.
        min_count:
            New values that occur less often in the further rows get no id.
        max_size:
            Most values in all, those that are known included.
        """
        counts = self.counts.copy()
        of_value = pl.Schema({"value": pl.String, "count": pl.Int64, "id": pl.Int32})
        frequent = [pl.DataFrame(schema=of_value)]

        def share(rows: pl.DataFrame) -> None:
            """Add rows to the counts of the ids that their values have without a new one."""
            np.add.at(counts, rows["id"].to_numpy(), rows["count"].to_numpy())

        value = pl.col("value")
        known = value.is_null() | self.known_ids(value, 0, len(self.values)).is_not_null()
        for frame in counted:
            found = frame.select(value.cast(pl.String), pl.col("count").cast(pl.Int64))
            found = found.with_columns(
                self.ids(value).alias("id"), is_new=~known & (pl.col("count") >= min_count)
            )
            frequent.append(found.filter("is_new").select(list(of_value)))
            share(found.filter(~pl.col("is_new")))
        ranked = pl.concat(frequent).sort(["count", "value"], descending=[True, False])
        room = len(ranked) if max_size is None else max(max_size - len(self.values), 0)
        gained = ranked.head(room)
        share(ranked.slice(gained.height))
        return replace(
            self,
            values=pl.concat([self.values, gained["value"]]),
            counts=np.concatenate([counts, gained["count"].to_numpy()]),
            after_buckets=self.after_buckets + gained.height if self.buckets else 0,
        )

    def is_grown_from(self, older: Vocabulary) -> bool:
        """Whether it is an older one with further ids: each id of that one means here what it means there."""
        further = self.size - older.size
        return (
            further >= 0
            and self.buckets == older.buckets
            and (not self.buckets or self.before_buckets == older.before_buckets)
            and self.values.head(len(older.values)).equals(older.values)
        )

    def ids_before(self, older: Vocabulary) -> npt.NDArray[np.int32]:
        """Return for each id the one that its values had before: int32 [size].

        Those that were gained since had the id of unseen values, or that of their hash bucket.

        Parameters
        ----------
        older:
            What this one was grown from (:meth:`is_grown_from`).
        """
        ids = np.arange(self.size, dtype=np.int32)
        gained = self.values.slice(len(older.values))
        ids[older.size :] = UNSEEN_ID
        if self.buckets:
            ids[older.size :] = FIRST_VALUE_ID + self.before_buckets + hash_bucket(gained, self.buckets)
        return ids

    @classmethod
    def load(cls, file: Path) -> Self:
        """Read a vocabulary file of a dataset or run.

        Raises
        ------
        DatasetError
            It is missing or damaged.
        """
        frame = read_table(file, ("id", "value", "count"))
        if not frame["id"].is_sorted():
            frame = frame.sort("id")
        found = cls(frame["value"].drop_nulls(), frame["count"].to_numpy().copy())
        if not found.buckets:
            return found
        last = frame["value"].is_null().arg_true()[-1]  # the last bucket: what follows was gained later
        return replace(found, after_buckets=found.size - 1 - int(last))

    @property
    def text_bytes(self) -> int:
        """Bytes of its texts."""
        return int(self.values.str.len_bytes().sum())

    @property
    def memory(self) -> int:
        """Bytes that it takes."""
        return int(self.values.estimated_size()) + self.counts.nbytes

    def save(self, file: Path) -> None:
        """Write the vocabulary file: id int32, value string (null for ids without one), count int64."""
        none = pl.Series([None], dtype=pl.String)
        values = [
            none.new_from_index(0, FIRST_VALUE_ID),
            self.values.head(self.before_buckets),
            none.new_from_index(0, self.buckets),
            self.values.slice(self.before_buckets),
        ]
        ids = np.arange(self.size, dtype=np.int32)
        frame = pl.DataFrame({"id": ids, "value": pl.concat(values), "count": self.counts})
        frame.write_parquet(file, row_group_size=ROWS_PER_GROUP)  # else it follows the number of threads

    def ids(self, value: pl.Expr) -> pl.Expr:
        """Int32 ids of the values (String) of an expression."""
        return self.completed(value, self.known_ids(value, 0, len(self.values)))

    def known_ids(self, value: pl.Expr, start: int, stop: int) -> pl.Expr:
        """Int32 ids of the values from the ``start``-th to before the ``stop``-th; null for others."""
        some = pl.Enum(self.values.slice(start, stop - start))
        place = value.cast(some, strict=False).to_physical().cast(pl.Int32) + start
        if not self.after_buckets:
            return place + FIRST_VALUE_ID
        skipped = pl.when(place >= self.before_buckets).then(self.buckets).otherwise(0)
        return place + skipped + FIRST_VALUE_ID

    def completed(self, value: pl.Expr, known: pl.Expr) -> pl.Expr:
        """Int32 ids of the values of an expression, given those of all that were kept."""
        unknown = self._bucket_ids(value, known) if self.buckets else pl.lit(UNSEEN_ID, pl.Int32)
        null = pl.lit(NULL_ID, pl.Int32)
        return pl.when(value.is_null()).then(null).otherwise(pl.coalesce(known, unknown))

    @property
    def value_counts(self) -> Counts:
        """The counts of the values, in their order: int64 [values]."""
        ids = np.arange(len(self.values)) + FIRST_VALUE_ID
        ids[self.before_buckets :] += self.buckets
        return self.counts[ids]

    @property
    def row_counts(self) -> npt.NDArray[np.int32]:
        """The counts as parts hold them: int32, at most 2^31 - 1."""
        return np.minimum(self.counts, np.iinfo(np.int32).max).astype(np.int32)

    @property
    def log_counts(self) -> npt.NDArray[np.float32]:
        """How frequent each id is: log(1 + count) / log(1 + rows), in [0, 1]; 0 for rare ones."""
        rows = max(float(self.counts.sum()), 1.0)
        logs: npt.NDArray[np.float64] = np.log1p(self.counts) / np.log1p(rows)
        logs[UNSEEN_ID] = 0.0
        return logs.astype(np.float32)

    def _bucket_ids(self, value: pl.Expr, known: pl.Expr) -> pl.Expr:
        first = FIRST_VALUE_ID + self.before_buckets

        def hash_unknown(values: pl.Series) -> pl.Series:
            distinct = values.drop_nulls().unique()
            ids = pl.Series(hash_bucket(distinct, self.buckets) + first, dtype=pl.Int32)
            return values.replace_strict(distinct, ids, default=None, return_dtype=pl.Int32)

        unknown = pl.when(known.is_null()).then(value)
        return unknown.map_batches(hash_unknown, return_dtype=pl.Int32, is_elementwise=True)


Entries = tuple[pl.Expr, npt.NDArray[np.generic]]  # ids, and the table that they are looked up in


class Lookup:
    """How the values of rows become ids, and ids the entries of a table: by casts to Enum, and by numpy."""

    def ids(self, name: str, vocabularies: Mapping[str, Vocabulary], value: pl.Expr) -> pl.Expr:
        """Int32 ids of the values (String) of the field ``name``."""
        return vocabularies[name].ids(value)

    def entries(self, ids: pl.Expr, table: npt.NDArray[np.generic]) -> pl.Expr:
        """Entries of a table at ids (integers, none null), of the type of the table."""
        dtype = pl.Series(table[:0]).dtype

        def entries(batch: pl.Series) -> pl.Series:
            # polars passes null for rows of which another branch of when-then-otherwise will be taken
            return pl.Series(table[batch.fill_null(0).to_numpy()])

        return ids.map_batches(entries, return_dtype=dtype, is_elementwise=True)

    def with_entries(self, rows: pl.LazyFrame, columns: Mapping[str, Entries]) -> pl.LazyFrame:
        """Add columns that are entries of tables: all in one call per batch, for each call has its price."""

        def entries(batch: pl.Series) -> pl.Series:
            ids = batch.struct.unnest()
            found = [pl.Series(name, table[ids[name].to_numpy()]) for name, (_, table) in columns.items()]
            return pl.DataFrame(found).to_struct()

        if not columns:
            return rows
        ids = pl.struct(index.alias(name) for name, (index, _) in columns.items())
        dtype = pl.Struct({name: pl.Series(table[:0]).dtype for name, (_, table) in columns.items()})
        found = ids.map_batches(entries, return_dtype=dtype, is_elementwise=True).alias(".entries")
        return rows.with_columns(found).drop(columns, strict=False).unnest(".entries")


def hash_bucket(values: pl.Series, buckets: int) -> Counts:
    """Bucket of each value: blake2b of its bytes, 8 bytes, little-endian, modulo the number of buckets."""
    digests = (hashlib.blake2b(value.encode(), digest_size=8).digest() for value in values)
    return np.fromiter((int.from_bytes(d, "little") % buckets for d in digests), np.int64, len(values))


def count_plan(rows: pl.LazyFrame, value: pl.Expr, *, part: int = 0, parts: int = 1) -> pl.LazyFrame:
    """Return the plan that counts the distinct values of a field, or one part of them, chosen by hash.

    Parameters
    ----------
    rows:
        The rows to fit on.
    value:
        The expression of the field's value (String, null where empty).

    Returns
    -------
    pl.LazyFrame
        Columns ``value`` and ``count``, in no order.
    """
    values = rows.select(value.alias("value"))
    if parts > 1:
        values = values.filter(pl.col("value").hash() % parts == part)
    return values.group_by("value").agg(pl.len().alias("count"))


def estimate_distinct(rows: pl.LazyFrame, values: Mapping[str, pl.Expr]) -> dict[str, int]:
    """Estimate the distinct values of each field, within a few percent, in one pass and little memory."""
    return _of_fields(rows, {name: value.approx_n_unique() for name, value in values.items()})


def mean_length(rows: pl.LazyFrame, values: Mapping[str, pl.Expr]) -> dict[str, int]:
    """Return the mean length of each field's texts, in bytes."""
    return _of_fields(rows, {name: value.str.len_bytes().mean() for name, value in values.items()})


def _of_fields(rows: pl.LazyFrame, facts: Mapping[str, pl.Expr]) -> dict[str, int]:
    if not facts:
        return {}
    plan = rows.select(fact.alias(name) for name, fact in facts.items())
    found = plan.collect(engine="streaming").row(0, named=True)
    return {name: round(number or 0) for name, number in found.items()}
