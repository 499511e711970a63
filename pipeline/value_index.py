"""The ids of all values of an encoder in one table, for rows that come by the million."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import polars as pl

from stampede.kernels.cpu.values import LONGEST_SHORT, build_kernel, look_up_kernel
from stampede.pipeline.arrow_views import StringViews
from stampede.pipeline.dataset import FIRST_VALUE_ID, NULL_ID, UNSEEN_ID
from stampede.pipeline.vocabulary import Vocabulary, hash_bucket

Ids = npt.NDArray[np.int32]

NOT_KNOWN = -1
"""In place of the id of a value that shares one by its hash."""


@dataclass(frozen=True)
class ValueIndex:
    """A hash table of the values of each field; the ids are those of :meth:`Vocabulary.ids`.

    Attributes
    ----------
    fields:
        Names of the fields.
    unknown:
        int64 [F]: the id of values without one of their own; :data:`NOT_KNOWN` where they share buckets.
    null_table:
        Number of a further table of the texts that mean null; -1 where only the empty text does.
    arrays:
        What the kernels of :mod:`stampede.kernels.cpu.values` take.
    """

    fields: tuple[str, ...]
    vocabularies: Mapping[str, Vocabulary]
    unknown: npt.NDArray[np.int64]
    null_table: int
    arrays: tuple[npt.NDArray[Any], ...]
    _kept: tuple[StringViews, ...]

    @classmethod
    def of(
        cls,
        vocabularies: Mapping[str, Vocabulary],
        *,
        null_values: Sequence[str] = (),
        as_text: Collection[str] | None = None,
    ) -> Self:
        """Build the table.

        Parameters
        ----------
        null_values:
            Texts that mean null, besides the empty one; those of up to 11 bytes are known.
        as_text:
            Fields whose values are texts of the log, where those mean null; a value that is computed never
            does. None for all.
        """
        words = pl.Series([w for w in null_values if len(w.encode()) <= LONGEST_SHORT], dtype=pl.String)
        names = list(vocabularies)
        kept = [StringViews.of(vocabulary.values) for vocabulary in vocabularies.values()]
        empty = StringViews.of(pl.Series(dtype=pl.String))
        null_views = StringViews.of(words)
        tables = [*kept, *([empty] if len(words) else [])]
        sizes = [1 << max((table.rows + len(words)) * 3 // 2, 1).bit_length() for table in tables]
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        slots = np.zeros(2 * int(starts[-1]), np.uint64)
        masks = np.array(sizes, np.int64) - 1
        views = np.array([table.views for table in tables], np.int64)
        buffers = np.array([address for table in tables for address in table.buffers] or [0], np.int64)
        first = np.concatenate([[0], np.cumsum([len(table.buffers) for table in tables])]).astype(np.int64)
        arrays = (slots, starts, masks, views, first, buffers)
        for number, table in enumerate(tables):
            build_kernel()(number, table.rows, FIRST_VALUE_ID, *arrays)
            of_text = number == len(kept) or as_text is None or names[number] in as_text
            for word in range(len(words) if of_text else 0):
                one = np.array(views)
                one[number] = null_views.views + 16 * word
                build_kernel()(number, 1, NULL_ID, slots, starts, masks, one, first, buffers)
        unknown = [NOT_KNOWN if book.buckets else UNSEEN_ID for book in vocabularies.values()]
        return cls(
            tuple(vocabularies),
            vocabularies,
            np.array(unknown, np.int64),
            len(kept) if len(words) else -1,
            arrays,
            tuple(kept),
        )

    def look_up(self, values: pl.DataFrame, ids: Ids) -> None:
        """Write the ids of some fields' values.

        Parameters
        ----------
        values:
            A String column for each of some fields, by their names; null and "" are null.
        ids:
            int32 [rows, F], contiguous; the columns of those fields are written.
        """
        if not values.width or not values.height:
            return
        columns = [StringViews.of(values[name]) for name in values.columns]
        places = np.array([self.fields.index(name) for name in values.columns], np.int64)
        texts = [address for column in columns for address in column.buffers]
        first_texts = np.concatenate([[0], np.cumsum([len(column.buffers) for column in columns])])
        look_up_kernel()(
            values.height,
            places,
            np.array([column.views for column in columns], np.int64),
            np.array([column.validity for column in columns], np.int64),
            np.array([column.validity_offset for column in columns], np.int64),
            first_texts.astype(np.int64),
            np.array(texts or [0], np.int64),
            NULL_ID,
            self.unknown,
            FIRST_VALUE_ID,
            ids.reshape(-1),
            len(self.fields),
            *self.arrays,
        )
        for place, name in zip(places.tolist(), values.columns, strict=True):
            if self.unknown[place] == NOT_KNOWN:
                self._share(self.vocabularies[name], values[name], ids[:, place])

    def _share(self, vocabulary: Vocabulary, values: pl.Series, ids: Ids) -> None:
        """Give values without an id of their own that of their bucket."""
        rows = np.flatnonzero(ids == NOT_KNOWN)
        if not len(rows):
            return
        others = values.gather(rows)
        distinct = others.unique()
        first = FIRST_VALUE_ID + len(vocabulary.values)
        shared = pl.Series(hash_bucket(distinct, vocabulary.buckets) + first, dtype=pl.Int32)
        ids[rows] = others.replace_strict(distinct, shared, return_dtype=pl.Int32).to_numpy()
