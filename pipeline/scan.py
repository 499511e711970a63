"""Raw input -> one text column per schema column: the first arrow of the data flow.

A scanned frame has ``.line`` (UInt32, the line or parquet row from 1), ``.text`` (the whole row), ``.shape``
(UInt16, one of the shape codes below) and every column of the schema that the file holds as String. A field
that is not there at all is null, an empty one is "": so a short row differs from one with empty last fields.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from stampede.pipeline.rawtext import split_fields
from stampede.pipeline.schema import Schema
from stampede.pipeline.sources import Source, parquet_text, parquet_types

LINE = ".line"
TEXT = ".text"
SHAPE = ".shape"

WELL_FORMED: Final = 0
BAD_QUOTES: Final = 1
TOO_FEW: Final = 2
TOO_MANY: Final = 3


def scan_source(source: Source, schema: Schema, *, text_file: Path | bytes | None = None) -> pl.LazyFrame:
    """Return the data rows of one input file as text, in order; header and blank lines are no rows.

    Parameters
    ----------
    text_file:
        File to read in place of ``source.path``, a copy with the same lines; or lines themselves.
    """
    if source.format == "parquet":
        return _scan_parquet(source, schema)
    text = source.path if text_file is None else text_file  # which may be no lines at all
    lines = pl.scan_lines(text, name=TEXT, row_index_name=LINE, row_index_offset=1, glob=False)
    if source.byte_order_mark:
        first = pl.col(LINE) == 1
        lines = lines.with_columns(
            pl.when(first).then(pl.col(TEXT).str.strip_prefix("\ufeff")).otherwise(pl.col(TEXT))
        )
    lines = lines.filter(~pl.col(TEXT).str.contains("^ *$"))
    if source.header_line is not None:
        lines = lines.filter(pl.col(LINE) != source.header_line)
    return lines.with_columns(_split(source).alias(".fields")).select(
        LINE, TEXT, _shape(len(source.columns)).alias(SHAPE), *_wanted_fields(source, schema)
    )


def _scan_parquet(source: Source, schema: Schema) -> pl.LazyFrame:
    types = parquet_types(source.path)
    frame = pl.scan_parquet(source.path, glob=False)
    return rows_of_parquet(frame, types, source, schema)


def rows_of_parquet(
    frame: pl.LazyFrame, types: Mapping[str, pl.DataType], source: Source, schema: Schema
) -> pl.LazyFrame:
    """Return rows of a parquet file as text, numbered from 1.

    Parameters
    ----------
    types:
        All columns of the file. The frame may have the needed ones alone.
    """
    wanted = [
        parquet_text(written, dtype, column, source, schema).alias(column)
        for (written, dtype), column in zip(types.items(), source.columns, strict=True)
        if column in (*schema.needed, schema.label)
    ]
    frame = frame.select(wanted).with_row_index(LINE, offset=1)
    shown = [pl.col(e.meta.output_name()).str.replace_all("\t", " ", literal=True) for e in wanted]
    return frame.with_columns(
        pl.concat_str(shown, separator="\t").alias(TEXT), pl.lit(WELL_FORMED, pl.UInt16).alias(SHAPE)
    )


def _wanted_fields(source: Source, schema: Schema) -> list[pl.Expr]:
    wanted = {*schema.needed, schema.label}
    return [_field(i).alias(column) for i, column in enumerate(source.columns) if column in wanted]


def _shape(width: int) -> pl.Expr:
    def code(value: int) -> pl.Expr:
        return pl.lit(value, pl.UInt16)

    return (
        pl.when(_field(0).is_null())
        .then(code(BAD_QUOTES))
        .when(_field(width - 1).is_null())
        .then(code(TOO_FEW))
        .when(_field(width).is_not_null())
        .then(code(TOO_MANY))
        .otherwise(code(WELL_FORMED))
    )


def _field(index: int) -> pl.Expr:
    return pl.col(".fields").struct.field(f"field_{index}")


def _split(source: Source) -> pl.Expr:
    """Split a row into its fields; in tab-separated text a quote has no meaning."""
    width = len(source.columns)
    if source.separator == "\t":
        return pl.col(TEXT).str.split_exact("\t", width)
    fields = pl.Struct({f"field_{i}": pl.String for i in range(width + 1)})
    return pl.col(TEXT).map_batches(
        lambda lines: split_quoted(lines, source.separator, width=width),
        return_dtype=fields,
        is_elementwise=True,
    )


def split_quoted(lines: pl.Series, separator: str, *, width: int) -> pl.Series:
    """Split lines whose fields may be quoted (RFC 4180, no line end inside a field).

    Returns
    -------
    pl.Series
        Struct of ``width + 1`` strings, ``field_0`` …: missing fields are null, a further field stands in the
        last one. All are null where the quotes of a line do not match.
    """
    if not lines.str.contains('"', literal=True).any():
        return lines.str.split_exact(separator, width)
    # Quotes around fields without a quote or separator in them have no effect; the other lines are parsed.
    field = f'(?:"[^"{re.escape(separator)}]*"|[^"{re.escape(separator)}]*)'
    simple = pl.col("line").str.contains(f"^{field}(?:{re.escape(separator)}{field})*$")
    unquoted = pl.col("line").str.replace_all('"', "", literal=True)
    lines = lines.to_frame("line").select(pl.when(simple).then(unquoted).otherwise("line")).to_series()
    plain = lines.str.split_exact(separator, width)
    quoted = lines.str.contains('"', literal=True).to_numpy()
    parsed = [_padded(split_fields(line, separator), width) for line in lines.filter(pl.Series(quoted))]
    names = [f"field_{i}" for i in range(width + 1)]
    repaired = pl.DataFrame(parsed, schema=dict.fromkeys(names, pl.String), orient="row").to_struct(
        plain.name
    )
    index = np.arange(len(lines))
    index[quoted] = len(lines) + np.arange(len(parsed))
    return plain.append(repaired).gather(index)


def _padded(fields: list[str] | None, width: int) -> list[str | None]:
    found = (fields or [])[: width + 1]
    return [*found, *[None] * (width + 1 - len(found))]
