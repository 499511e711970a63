"""NVTabular's ids and texts against the contract's: renumber, recount, and what pandas cannot compare.

``Categorify`` keeps 0 for padding, 1 for null and 2 for rare and unseen values, as the contract does; then
its values follow by falling count, those of the same count in no order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from stampede.pipeline.dataset import FIRST_VALUE_ID, NULL_ID, PADDING_ID, UNSEEN_ID
from stampede.pipeline.fit import build_vocabulary
from stampede.pipeline.options import PrepareOptions
from stampede.pipeline.spool import ROW
from stampede.pipeline.vocabulary import Lookup, Vocabulary, count_plan

ESCAPE = "\ue000"  # a character for private use, hardly in any log

Ids = npt.NDArray[np.int32]


def escape(text: pl.Expr) -> pl.Expr:
    """Replace the character NUL, at which pandas ends a text when it groups; other texts stay as they are."""
    text = text.str.replace_all(ESCAPE, f"{ESCAPE}0", literal=True)
    return text.str.replace_all("\0", f"{ESCAPE}1", literal=True)


def unescape(text: pl.Expr) -> pl.Expr:
    """Undo :func:`escape`."""
    text = text.str.replace_all(f"{ESCAPE}1", "\0", literal=True)
    return text.str.replace_all(f"{ESCAPE}0", ESCAPE, literal=True)


def stored_values(workflow: Path, field: str) -> pl.Series:
    """Return the values of a field in the order of NVTabular's ids, from 3 on."""
    file = _values_file(workflow, field)
    if not file.exists():  # no fitted row has a value
        return pl.Series(field, [], dtype=pl.String)
    values = pl.read_parquet(file, columns=[field], glob=False)
    return values.select(unescape(pl.col(field).cast(pl.String))).to_series()


def recount(
    fitted: pl.LazyFrame,
    stored: dict[str, pl.Series],
    options: PrepareOptions,
) -> Iterator[tuple[str, Vocabulary]]:
    """Build the contract's vocabulary of each field from the ids of the fitted rows.

    Parameters
    ----------
    fitted:
        The fitted rows as NVTabular encoded them.
    stored:
        For each field what :func:`stored_values` returns.
    """
    plans = [count_plan(fitted, pl.col(field)) for field in stored]
    for field, counted in zip(stored, pl.collect_all(plans, engine="streaming"), strict=True):
        counts = np.zeros(FIRST_VALUE_ID + len(stored[field]), dtype=np.int64)
        counts[counted["value"].to_numpy()] = counted["count"].to_numpy()
        null = pl.DataFrame({"value": pl.Series([None], dtype=pl.String), "count": counts[[NULL_ID]]})
        values = pl.DataFrame({"value": stored[field], "count": counts[FIRST_VALUE_ID:]})
        vocabulary = build_vocabulary([null, values], options)
        vocabulary.counts[UNSEEN_ID] += counts[UNSEEN_ID]  # rare values, which NVTabular did not keep
        yield field, vocabulary


def translate(
    encoded: pl.LazyFrame,
    handed: pl.LazyFrame,
    vocabularies: Mapping[str, Vocabulary],
    stored: dict[str, pl.Series],
) -> pl.LazyFrame:
    """Renumber the ids of rows that NVTabular encoded, and add the number of each row.

    Parameters
    ----------
    encoded, handed:
        The same rows, encoded and as text, with their number: a value that NVTabular does not know may have
        a hash bucket.
    stored:
        For each field what :func:`stored_values` returns.
    """
    tables = {field: _contract_ids(book, stored[field]) for field, book in vocabularies.items()}
    bucketed = [field for field, book in vocabularies.items() if book.buckets]
    texts = [unescape(pl.col(field)).alias(f".{field}") for field in bucketed]
    encoded = pl.concat([encoded, handed.select(ROW, *texts)], how="horizontal")
    ids = {field: (pl.col(field), table) for field, table in tables.items()}
    buckets = [_with_buckets(field, vocabularies[field]) for field in bucketed]
    return Lookup().with_entries(encoded, ids).with_columns(buckets)


def _with_buckets(field: str, vocabulary: Vocabulary) -> pl.Expr:
    """Replace id 2 by the bucket of the value, which stands in the column of that name behind a dot."""
    unseen = pl.col(field) == UNSEEN_ID
    bucket = vocabulary.ids(pl.when(unseen).then(pl.col(f".{field}")))
    return pl.when(unseen).then(bucket).otherwise(pl.col(field)).alias(field)


def _contract_ids(vocabulary: Vocabulary, stored: pl.Series) -> Ids:
    """Return the contract's id of each id of NVTabular."""
    values = pl.select(vocabulary.ids(pl.lit(stored))).to_series().to_numpy()
    return np.concatenate([np.array([PADDING_ID, NULL_ID, UNSEEN_ID], np.int32), values])


def renumber_workflow(workflow: Path, field: str, vocabulary: Vocabulary) -> None:
    """Give a saved workflow the ids and counts of the contract."""
    counts, values = vocabulary.counts, vocabulary.values
    sizes = counts[FIRST_VALUE_ID : FIRST_VALUE_ID + len(values)]
    file = _values_file(workflow, field)
    if file.exists():
        pl.DataFrame({field: values, f"{field}_size": sizes}).write_parquet(file)
        other = counts.sum() - counts[NULL_ID] - sizes.sum()
        meta = {
            "kind": ["pad", "null", "oov", "unique"],
            "offset": [PADDING_ID, NULL_ID, UNSEEN_ID, FIRST_VALUE_ID],
            "num_indices": [1, 1, 1, len(values)],
            "num_observed": [0, counts[NULL_ID], other, sizes.sum()],
        }
        pl.DataFrame(meta).write_parquet(file.with_name(f"meta.{field}.parquet"))
    joined = file.with_name(f"cat_stats.{field}.parquet")
    if joined.exists():
        frame = pl.DataFrame({field: np.arange(len(counts), dtype=np.int64), f"{field}_count": counts})
        frame.write_parquet(joined / "part.0.parquet")


def _values_file(workflow: Path, field: str) -> Path:
    return workflow / "categories" / f"unique.{field}.parquet"
