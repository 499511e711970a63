"""A block of raw rows -> the dense features and ids of its rows, by what an encoder was fitted with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from stampede.kernels.cpu.rows_of_text import (
    LINE,
    MOMENT,
    NUMBER,
    ROW,
    SKIPPED,
    START,
    STOP,
    VALUE,
    parse_kernel,
)
from stampede.kernels.cpu.values import LONGEST_SHORT, look_up_kernel
from stampede.pipeline.dataset import FIRST_VALUE_ID, NULL_ID
from stampede.pipeline.encode import Encoder, field_values
from stampede.pipeline.parquet_rows import ParquetBlock, ParquetRows
from stampede.pipeline.rows import HOUR, parse_hour
from stampede.pipeline.text_blocks import TextBlock
from stampede.pipeline.text_rows import TextRows
from stampede.pipeline.value_index import ValueIndex

LEFT_AT_MOST = 1 / 8
"""Share of a block's rows up to which those that the kernel leaves are read on their own."""

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class EncodedBlock:
    """Model inputs of some rows, in order.

    Attributes
    ----------
    dense:
        float32 [B, n_dense].
    ids:
        int32 [B, F].
    """

    dense: npt.NDArray[np.float32]
    ids: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.ids)


class BlockEncoder:
    """Encodes blocks of raw rows as :meth:`Encoder.encode` defines it; may be used by several threads."""

    def __init__(self, encoder: Encoder) -> None:
        schema, vocabularies = encoder.schema, encoder.vocabularies
        self.encoder = encoder
        self._index = ValueIndex.of(vocabularies, null_values=schema.null_values, as_text=schema.categorical)
        self._values = field_values(schema, encoding := encoder.encoding)
        derived = [name for name in vocabularies if name not in schema.categorical]
        self._derived = [self._values[name].alias(name) for name in derived]
        self._numbers = encoder.numbers()
        # a cross is made of values; a long text for null is not in the index
        self._knows_texts = not encoding.crosses and all(
            len(word.encode()) <= LONGEST_SHORT for word in schema.null_values
        )
        self._tables: list[tuple[int, npt.NDArray[np.float32]]] = []
        if encoding.count_features:
            self._tables = [(place, book.log_counts) for place, book in enumerate(vocabularies.values())]
        places = {name: place for place, name in enumerate(vocabularies)}
        self._tables += [(places[name], encoder.targets[name].rates) for name in encoding.target_encoded]
        self._parse = parse_kernel()
        look_up_kernel()  # compiled here, once, rather than by the threads that need it first

    def of_text(self, block: TextBlock, rows: TextRows) -> EncodedBlock:
        """Encode lines of text.

        Raises
        ------
        InputError
            One of the rows cannot be used; names its file and line.
        """
        text = block.text()
        encoded = self._by_kernel(block, text, rows) if self._can_parse(rows) and _is_utf8(text) else None
        if encoded is None:
            lines = range(block.first_line, block.first_line + text.count(b"\n"))
            return self._of_typed(rows.typed(text, lines))
        return encoded

    def of_parquet(self, block: ParquetBlock, rows: ParquetRows) -> EncodedBlock:
        """Encode rows of a parquet file.

        Raises
        ------
        InputError
            One of the rows cannot be used; names its file and number.
        """
        null_texts = self._knows_texts and (self._index.null_table < 0)
        return self._of_typed(rows.typed(block, null_texts=null_texts))

    def _of_typed(self, rows: pl.DataFrame) -> EncodedBlock:
        """Encode typed rows; where the index knows the texts that mean null, they may stand for null."""
        ids = np.empty((rows.height, len(self._index.fields)), np.int32)
        self._index.look_up(rows.select(self.encoder.schema.categorical), ids)
        return self._completed(rows, ids)

    def _completed(self, rows: pl.DataFrame, ids: npt.NDArray[np.int32]) -> EncodedBlock:
        """Add what follows from numbers, times and ids."""
        if self._derived:
            self._index.look_up(rows.select(self._derived), ids)
        numbers = np.empty((len(ids), len(self._numbers) + len(self._tables)), np.float32)
        if self._numbers:
            numbers[:, : len(self._numbers)] = rows.select(self._numbers).to_numpy(order="c")
        for column, (place, table) in enumerate(self._tables, len(self._numbers)):
            numbers[:, column] = table[ids[:, place]]
        return EncodedBlock(numbers, ids)

    def _can_parse(self, rows: TextRows) -> bool:
        """Whether the kernel knows the text."""
        schema = self.encoder.schema
        return (
            self._knows_texts
            and len(rows.source.separator.encode()) == 1
            and rows.source.separator != " "  # a line of spaces is blank, whatever it separates
            and (schema.time is None or schema.time_format in ("auto", "yymmddhh"))
        )

    def _by_kernel(self, block: TextBlock, text: bytes, rows: TextRows) -> EncodedBlock | None:
        """Encode lines of UTF-8 by the kernel; None where it leaves too many of them."""
        schema, index = self.encoder.schema, self._index
        capacity = text.count(b"\n")
        kinds, places = self._columns(rows)
        numbers = np.empty((len(schema.dense), capacity))
        moments = np.empty(capacity if schema.time else 0, np.int64)
        ids = np.empty((capacity, len(index.fields)), np.int32)
        left = np.empty((capacity, 4), np.int64)
        count, _, others = self._parse(
            block.memory.ctypes.data + block.start,
            block.stop - block.start,
            ord(rows.source.separator),
            kinds,
            places,
            index.null_table,
            NULL_ID,
            index.unknown,
            FIRST_VALUE_ID,
            numbers.reshape(-1),
            moments,
            capacity,
            ids.reshape(-1),
            left.reshape(-1),
            *index.arrays,
        )
        if others > LEFT_AT_MOST * count:
            return None
        typed = {name: pl.Series(numbers[k, :count]).fill_nan(None) for k, name in enumerate(schema.dense)}
        if schema.time:
            typed[HOUR] = self._hours(moments[:count])
            if typed[HOUR].null_count() > others:
                return None
        encoded = self._completed(pl.DataFrame(typed), ids[:count])
        if others:
            left = left[:others]
            lines = b"".join(text[start:stop] + b"\n" for start, stop in left[:, [START, STOP]].tolist())
            numbers_of_lines = (left[:, LINE] + block.first_line).tolist()
            read = self._of_typed(rows.typed(lines, numbers_of_lines))
            encoded.dense[left[:, ROW]], encoded.ids[left[:, ROW]] = read.dense, read.ids
        return encoded

    def _columns(self, rows: TextRows) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int32]]:
        """Return what each column of a text is for the kernel, and which number or field."""
        schema = self.encoder.schema
        known: dict[str, tuple[int, int]] = {name: (NUMBER, k) for k, name in enumerate(schema.dense)}
        known |= {name: (VALUE, self._index.fields.index(name)) for name in schema.categorical}
        if schema.time:
            known[schema.time] = (MOMENT, 0)
        columns = [known.get(name, (SKIPPED, 0)) for name in rows.source.columns]
        return np.array([kind for kind, _ in columns], np.int8), np.array([k for _, k in columns], np.int32)

    def _hours(self, moments: Integers) -> pl.Series:
        """Return the hours (Int32) of times YYMMDDHH as numbers; null for -1 and what is no time."""
        distinct, place = np.unique(moments, return_inverse=True)
        texts = pl.Series([f"{moment:08}" for moment in distinct.tolist()], dtype=pl.String)
        hour = parse_hour(pl.col("time"), self.encoder.schema.time_format)
        return texts.to_frame("time").select(hour).to_series().gather(place)


def _is_utf8(text: bytes) -> bool:
    if text.isascii():
        return True
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
