"""Text columns -> typed columns, and which rows cannot be used.

A parsed frame has ``.line``, ``.faulty`` (Boolean), ``label`` (Int8), the dense columns (Float64, null where
empty), the categorical columns (String, null where empty) and, for a log with a time, ``.hour`` (Int32, whole
hours since 1970 in UTC). Why a row cannot be used is looked up for the faulty rows alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from stampede.pipeline.rawtext import split_fields
from stampede.pipeline.scan import BAD_QUOTES, LINE, SHAPE, TEXT, TOO_FEW, TOO_MANY, WELL_FORMED
from stampede.pipeline.schema import Schema, TimeFormat
from stampede.pipeline.sources import Source

FAULTY = ".faulty"
FAULT = ".fault"
HOUR = ".hour"
LABEL = "label"

GOOD: Final = WELL_FORMED
NOT_UTF8: Final = 9
FIRST_COLUMN_FAULT: Final = 10

SHOWN_CHARACTERS = 60

# A date, with or without a time of hours, minutes and seconds; a day has no leap second.
ISO_TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}(:[0-5][0-9](:[0-5][0-9](\.[0-9]+)?)?)?Z?)?$"


@dataclass(frozen=True)
class Fault:
    """Why a row cannot be used: the column, if one is at fault, and the reason in words."""

    column: str | None
    reason: str


@dataclass(frozen=True)
class RowParser:
    """How the text of a row is given its types.

    Attributes
    ----------
    with_label:
        Whether to read the label; without it the result has no such column.
    spaces:
        Whether there may be spaces around numbers. Without them reading is faster.
    not_utf8:
        Lines that are known not to be UTF-8.
    """

    schema: Schema
    with_label: bool
    spaces: bool = False
    not_utf8: tuple[int, ...] = ()

    def parse(self, raw: pl.LazyFrame) -> pl.LazyFrame:
        """Give each text column its type, and say of each row whether it can be used.

        Parameters
        ----------
        raw:
            A frame of :func:`stampede.pipeline.scan.scan_source`.
        """
        faulty = pl.any_horizontal(*(fault for fault, _ in self._faults()))
        return raw.select(LINE, faulty.alias(FAULTY), *self._columns())

    def faults(self, raw: pl.LazyFrame) -> pl.LazyFrame:
        """Return the rows that cannot be used: ``.line``, ``.fault`` (UInt16, the first one), ``.text``."""
        codes = [pl.when(fault).then(code) for fault, code in self._faults()]
        return raw.select(LINE, pl.coalesce(codes).alias(FAULT), TEXT).drop_nulls(FAULT)

    def _columns(self) -> list[pl.Expr]:
        schema = self.schema
        columns = [parse_label(pl.col(schema.label)).alias(LABEL)] if self.with_label else []
        columns += [self._number(name).alias(name) for name in schema.dense]
        for name in schema.categorical:
            columns.append(pl.when(~self._is_null(pl.col(name))).then(pl.col(name)).alias(name))
        if schema.time is not None:
            columns.append(parse_hour(pl.col(schema.time), schema.time_format).alias(HOUR))
        return columns

    def _faults(self) -> list[tuple[pl.Expr, pl.Expr]]:
        """Return the conditions under which a row cannot be used, the weightiest first, and their codes."""
        schema = self.schema
        faults = [(pl.col(SHAPE) != WELL_FORMED, pl.col(SHAPE))]
        if self.not_utf8:
            lines = pl.Series(self.not_utf8, dtype=pl.UInt32).implode()
            faults.insert(0, (pl.col(LINE).is_in(lines), pl.lit(NOT_UTF8, pl.UInt16)))
        columns = []
        if self.with_label:
            columns.append((parse_label(pl.col(schema.label)).is_null(), schema.label))
        for name in schema.dense:
            usable = self._number(name).cast(pl.Float32).is_finite().fill_null(value=False)
            columns.append((~self._is_null(self._text(name), stripped=self.spaces) & ~usable, name))
        if schema.time is not None:
            columns.append((parse_hour(pl.col(schema.time), schema.time_format).is_null(), schema.time))
        codes = _column_codes(schema)
        return faults + [(fault, pl.lit(codes[column], pl.UInt16)) for fault, column in columns]

    def _text(self, name: str) -> pl.Expr:
        return pl.col(name).str.strip_chars(" ") if self.spaces else pl.col(name)

    def _number(self, name: str) -> pl.Expr:
        number = self._text(name).cast(pl.Float64, strict=False)
        if not self.schema.null_values:
            return number
        return pl.when(~self._is_null(self._text(name), stripped=self.spaces)).then(number)

    def _is_null(self, text: pl.Expr, *, stripped: bool = False) -> pl.Expr:
        words = self.schema.null_values
        if stripped:
            words = tuple(word.strip(" ") for word in words)
        return text.is_in(("", *words)) if words else text == ""


def parse_label(text: pl.Expr) -> pl.Expr:
    """Int8 label of its text: 1, 1.0, true -> 1; 0, 0.0, -1, -1.0, false -> 0; anything else -> null."""
    word = text.str.strip_chars(" ").str.to_lowercase()
    number = word.cast(pl.Float64, strict=False)
    click = (number == 1) | (word == "true")
    no_click = (number == 0) | (number == -1) | (word == "false")
    return (
        pl.when(click.fill_null(value=False))
        .then(pl.lit(1, pl.Int8))
        .when(no_click.fill_null(value=False))
        .then(pl.lit(0, pl.Int8))
    )


def parse_hour(text: pl.Expr, time_format: TimeFormat) -> pl.Expr:
    """Int32 whole hours since 1970-01-01 00:00 UTC of a time's text; null where it is no time."""
    word = text.str.strip_chars(" ")
    compact = pl.when(word.str.contains("^[0-9]{8}$")).then(
        (word + "00").str.to_datetime("%y%m%d%H%M", strict=False, time_unit="ms")
    )
    iso = pl.when(word.str.contains(ISO_TIME)).then(
        (word.str.slice(0, 10) + word.str.slice(11, 2).replace("", "00") + "00").str.to_datetime(
            "%Y-%m-%d%H%M", strict=False, time_unit="ms"
        )
    )
    seconds = pl.when(word.str.contains(r"^[0-9]{9,11}(\.[0-9]+)?$")).then(
        pl.from_epoch(word.str.extract("^([0-9]+)").cast(pl.Int64, strict=False), "s").cast(pl.Datetime("ms"))
    )
    moment = {
        "yymmddhh": compact,
        "iso": iso,
        "unix": seconds,
        "auto": pl.coalesce(compact, iso, seconds),
    }[time_format]
    return (moment.dt.timestamp("ms") // 3_600_000).cast(pl.Int32)


def explain(code: int, text: str, source: Source, schema: Schema) -> Fault:
    """Put the fault of one raw row into words."""
    separator = "\t" if source.format == "parquet" else source.separator
    columns = [c for c in source.columns if source.format == "text" or c in (*schema.needed, schema.label)]
    if code == NOT_UTF8:
        return Fault(None, "the row is not UTF-8 text")
    if code == BAD_QUOTES:
        return Fault(None, 'a quoted field is not closed, or text follows its closing quote (")')
    fields = split_fields(text, separator) or [text]
    if code in (TOO_FEW, TOO_MANY):
        found = "1 field" if len(fields) == 1 else f"{len(fields)} fields"
        return Fault(None, f"the row has {found} where {len(columns)} are expected")
    column = next(column for column, known in _column_codes(schema).items() if known == code)
    value = fields[columns.index(column)]
    if len(value) > SHOWN_CHARACTERS:
        value = f"{value[:SHOWN_CHARACTERS]}…"
    if column == schema.label:
        return Fault(column, f"{value!r} is not a label (0/1, -1/1, true/false or 0.0/1.0)")
    if column == schema.time:
        return Fault(column, f"{value!r} is not a time (YYMMDDHH, YYYY-MM-DD HH:MM:SS or Unix seconds)")
    return Fault(column, f"{value!r} is not a finite number within float32")


def _column_codes(schema: Schema) -> dict[str, int]:
    """Return the code of a fault in each column that can have one."""
    columns = (schema.label, *schema.dense, *((schema.time,) if schema.time else ()))
    return {column: code for code, column in enumerate(columns, FIRST_COLUMN_FAULT)}
