"""Rows in memory -> encoded rows: what a served model sees is what the same rows in a file would give it.

A row is a mapping of column names to values, of the names that the schema of the log has. Its values are
turned into the text that a log would hold, and go through the parser and the encoder that files go through.
Text with a tab or a line end in it is a value like any other, as in a parquet file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from stampede import InputError
from stampede.pipeline.encode import Encoder
from stampede.pipeline.rows import FAULT, FAULTY, Fault, RowParser, explain
from stampede.pipeline.scan import LINE, SHAPE, TEXT, WELL_FORMED
from stampede.pipeline.sources import Source
from stampede.pipeline.vocabulary import Lookup, Vocabulary

SHOWN_CHARACTERS = 60

RowText = tuple[str, ...]
"""The text of a row's columns, in the order of ``Schema.needed``."""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Encoded:
    """Encoded rows, one for each row that was given, and why some of them cannot be used.

    Attributes
    ----------
    frame:
        The columns of ``Encoder.columns(counts=False)``; of rows that cannot be used, anything.
    faults:
        By the index of the row.
    """

    frame: pl.DataFrame
    faults: Mapping[int, Fault]


class RowEncoder:
    """Encodes rows in memory with a fitted encoder.

    Example
    -------
    >>> rows = RowEncoder(run.encoder)
    >>> rows.encode([{"I1": 1, "C1": "68fd1e64"}, {"I1": None}])
    """

    def __init__(self, encoder: Encoder) -> None:
        schema = encoder.schema
        self.encoder = encoder
        self.columns = schema.needed
        self.known = frozenset((*schema.columns, *schema.needed, schema.label, *schema.drop))
        self._dense = frozenset(schema.dense)
        # a file is read with spaces around numbers where plain reading fails: the result is the same
        self._parser = RowParser(schema, with_label=False, spaces=True)
        self._lookup = _KeptLookup()
        self._like_parquet = Source(Path("rows"), "parquet", self.columns)

    def encode(self, rows: Sequence[Row]) -> pl.DataFrame:
        """Encode rows; the result has one row for each, in order.

        Raises
        ------
        InputError
            A row that cannot be encoded; names its index, from 0, and the column.
        """
        texts = []
        for index, row in enumerate(rows):
            try:
                texts.append(self.text_of(row))
            except RowFault as error:
                raise _input_error(index, error.fault) from error
        encoded = self.encode_texts(texts)
        for index, fault in encoded.faults.items():
            raise _input_error(index, fault)
        return encoded.frame

    def text_of(self, row: Row) -> RowText:
        """Return the text that a log would hold for the values of a row; columns that it lacks are empty.

        Strings are taken as they are, None is empty, integers have their digits. True and False are 1 and 0
        in a dense column, ``true`` and ``false`` in a categorical one, as of a parquet file. Fractions have
        their shortest digits in a dense column; in a categorical one they have no text that every program
        would give them, and are refused. The label and the columns that the schema drops are not read.

        Raises
        ------
        RowFault
            A column that the schema does not have, or a value of another type.
        """
        if not row.keys() <= self.known:
            unknown = next(name for name in row if name not in self.known)
            raise RowFault(Fault(_shown(str(unknown)), "the model's log has no such column"))
        return tuple(self._text(name, row.get(name)) for name in self.columns)

    def encode_texts(self, texts: Sequence[RowText]) -> Encoded:
        """Encode the texts of rows, those that cannot be used included."""
        columns = zip(*texts, strict=True) if texts else ((),) * len(self.columns)
        frame = pl.DataFrame(
            [pl.Series(name, values, pl.String) for name, values in zip(self.columns, columns, strict=True)]
        )
        raw = frame.with_row_index(LINE).with_columns(pl.lit(WELL_FORMED, pl.UInt16).alias(SHAPE))
        typed = self._parser.parse(raw.lazy()).collect()
        faults = self._faults(raw, typed) if typed[FAULTY].any() else {}
        rows = typed.lazy().drop(LINE, FAULTY)
        return Encoded(self.encoder.encode(rows, counts=False, lookup=self._lookup).collect(), faults)

    def _text(self, name: str, value: Any) -> str:
        kind = type(value)
        if kind is str:
            if not value.isascii():
                _check_text(name, value)
            return str(value)
        if value is None:
            return ""
        if kind is bool:
            return str(int(value)) if name in self._dense else str(value).lower()
        if kind is int or (kind is float and name in self._dense):
            try:
                return repr(value)
            except ValueError:  # Python refuses to write out more than 4300 digits
                raise RowFault(Fault(name, "the number has too many digits")) from None
        if kind is float:
            raise RowFault(Fault(name, "a fraction has no text of its own: give a string"))
        raise RowFault(Fault(name, "a value must be a string, a number, true, false or null"))

    def _faults(self, raw: pl.DataFrame, typed: pl.DataFrame) -> dict[int, Fault]:
        shown = [pl.col(name).str.replace_all("\t", " ", literal=True) for name in self.columns]
        text = pl.concat_str(shown, separator="\t").alias(TEXT)
        bad = raw.filter(typed[FAULTY]).with_columns(text)
        found = self._parser.faults(bad.lazy()).select(LINE, FAULT, TEXT).collect()
        schema = self.encoder.schema
        return {
            index: explain(code, text, self._like_parquet, schema) for index, code, text in found.iter_rows()
        }


class RowFault(Exception):
    """One row that cannot be used, and why."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.reason if fault.column is None else f"column {fault.column}: {fault.reason}")
        self.fault = fault


class _KeptLookup(Lookup):
    """Keeps the expression of each field: to make one goes through the whole vocabulary."""

    def __init__(self) -> None:
        self._ids: dict[str, pl.Expr] = {}

    def ids(self, name: str, vocabularies: Mapping[str, Vocabulary], value: pl.Expr) -> pl.Expr:
        """Int32 ids of the values (String) of the field ``name``."""
        if name not in self._ids:
            self._ids[name] = super().ids(name, vocabularies, value)
        return self._ids[name]


def _check_text(name: str, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can write
        raise RowFault(Fault(name, "the value is not UTF-8 text")) from None


def _shown(text: str) -> str:
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def _input_error(index: int, fault: Fault) -> InputError:
    return InputError(fault.reason, file=f"row {index}", column=fault.column)
