"""Text columns -> typed columns, with the fault of each row that cannot be used.

A parsed frame has ``.line``, ``.fault`` (UInt16, 0 where the row is good), ``.text`` (the raw row where it is
not), ``label`` (Int8), the dense columns (Float64, null where empty), the categorical columns (String, null
where empty) and, for a log with a time, ``.hour`` (Int32, whole hours since 1970 in UTC).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from stampede.pipeline.rawtext import split_fields
from stampede.pipeline.scan import BAD_QUOTES, LINE, SHAPE, TEXT, TOO_FEW, TOO_MANY, WELL_FORMED
from stampede.pipeline.schema import Schema, TimeFormat
from stampede.pipeline.sources import Source

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


def parse_rows(
    raw: pl.LazyFrame, schema: Schema, *, with_label: bool, not_utf8: tuple[int, ...] = ()
) -> pl.LazyFrame:
    """Give each text column its type and each row its fault.

    Parameters
    ----------
    raw:
        A frame of :func:`stampede.pipeline.scan.scan_source`.
    with_label:
        Whether to read the label; without it the result has no such column.
    not_utf8:
        Lines that are known not to be UTF-8.
    """
    raw = raw.with_columns(pl.col(name).str.strip_chars(" ") for name in schema.dense)
    faults: list[pl.Expr] = [pl.when(pl.col(SHAPE) != WELL_FORMED).then(pl.col(SHAPE))]
    if not_utf8:
        lines = pl.Series(not_utf8, dtype=pl.UInt32).implode()
        faults.insert(0, _fault(pl.col(LINE).is_in(lines), NOT_UTF8))
    parsed: list[pl.Expr] = []
    if with_label:
        label = parse_label(pl.col(schema.label))
        parsed.append(label.alias(LABEL))
        faults.append(_fault(label.is_null(), _column_fault(schema.label, schema)))
    for name in schema.dense:
        number = pl.col(name).cast(pl.Float64, strict=False)
        if schema.null_values:
            number = pl.when(~_is_null(name, schema)).then(number)
        parsed.append(number.alias(name))
        usable = number.cast(pl.Float32).is_finite()
        bad = ~_is_null(name, schema) & ~usable.fill_null(value=False)
        faults.append(_fault(bad, _column_fault(name, schema)))
    parsed += [pl.when(~_is_null(name, schema)).then(pl.col(name)).alias(name) for name in schema.categorical]
    if schema.time is not None:
        hour = parse_hour(pl.col(schema.time), schema.time_format)
        parsed.append(hour.alias(HOUR))
        faults.append(_fault(hour.is_null(), _column_fault(schema.time, schema)))
    fault = pl.coalesce(*faults, pl.lit(GOOD, pl.UInt16)).alias(FAULT)
    text = pl.when(pl.col(FAULT) != GOOD).then(pl.col(TEXT)).alias(TEXT)
    names = [expression.meta.output_name() for expression in parsed]
    typed = raw.with_columns(fault).select(LINE, FAULT, text, *parsed)
    return typed.select(LINE, FAULT, TEXT, *names)


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
    column = _fault_columns(schema)[code - FIRST_COLUMN_FAULT]
    value = fields[columns.index(column)]
    if len(value) > SHOWN_CHARACTERS:
        value = f"{value[:SHOWN_CHARACTERS]}…"
    if column == schema.label:
        return Fault(column, f"{value!r} is not a label (0/1, -1/1, true/false or 0.0/1.0)")
    if column == schema.time:
        return Fault(column, f"{value!r} is not a time (YYMMDDHH, YYYY-MM-DD HH:MM:SS or Unix seconds)")
    return Fault(column, f"{value!r} is not a finite number within float32")


def _fault_columns(schema: Schema) -> list[str]:
    return [schema.label, *schema.dense, *((schema.time,) if schema.time else ())]


def _column_fault(column: str, schema: Schema) -> int:
    return FIRST_COLUMN_FAULT + _fault_columns(schema).index(column)


def _fault(condition: pl.Expr, code: int) -> pl.Expr:
    return pl.when(condition).then(pl.lit(code, pl.UInt16))


def _is_null(column: str, schema: Schema) -> pl.Expr:
    text = pl.col(column)
    if not schema.null_values:
        return text == ""
    return text.is_in(("", *schema.null_values))
