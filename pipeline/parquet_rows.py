"""Rows of a parquet file -> typed rows, as :mod:`stampede.pipeline.rows` defines them, a few at a time.

Their definition takes the text of every value. Integers and float64 are taken as the numbers they are, which
is the same: their text names them exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

import polars as pl

from stampede.pipeline.errors import READ_ERRORS
from stampede.pipeline.rows import FAULTY, RowParser
from stampede.pipeline.scan import LINE, rows_of_parquet
from stampede.pipeline.schema import Schema
from stampede.pipeline.sources import Source, parquet_text, parquet_types
from stampede.pipeline.spool import damaged, row_error

ROWS_PER_BLOCK = 1 << 15

EXACT_TYPES = (
    *(pl.Int8, pl.Int16, pl.Int32, pl.Int64),
    *(pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64),
    pl.Float64,
)


@dataclass(frozen=True)
class ParquetBlock:
    """Some rows of a file, its needed columns alone, as they are written there.

    Attributes
    ----------
    before:
        Number of rows of the file before these.
    """

    frame: pl.DataFrame
    before: int


@dataclass(frozen=True)
class ParquetRows:
    """Reads one file and gives its rows their types; the label is not read.

    Attributes
    ----------
    types:
        All columns of the file.
    """

    source: Source
    schema: Schema
    types: dict[str, pl.DataType]

    @classmethod
    def of(cls, source: Source, schema: Schema) -> Self:
        """Look at the types of a file's columns.

        Raises
        ------
        InputError
            It is damaged.
        SchemaError
            A column has a type without a text.
        """
        needed = tuple(name if name in schema.needed else "" for name in source.columns)
        rows = cls(replace(source, columns=needed), schema, parquet_types(source.path))
        for name in schema.needed:
            rows._text(name)
        return rows

    def blocks(self) -> Iterator[ParquetBlock]:
        """Yield the rows of the file.

        Raises
        ------
        InputError
            It is damaged.
        """
        written = [self._written[name] for name in self.schema.needed]
        try:
            before = 0
            frame = pl.scan_parquet(self.source.path, glob=False).select(written)
            for batch in frame.collect_batches(chunk_size=ROWS_PER_BLOCK, maintain_order=True):
                yield ParquetBlock(batch, before)
                before += batch.height
        except READ_ERRORS as error:
            raise damaged(self.source.path, error) from error

    def typed(self, block: ParquetBlock, *, null_texts: bool) -> pl.DataFrame:
        """Return typed rows.

        Parameters
        ----------
        null_texts:
            Whether a category may stand there as the text that means null: "" or one of the schema's.

        Raises
        ------
        InputError
            One of the rows cannot be used; names the first.
        """
        exact = [name for name in self.schema.dense if self._is_exact(name)] if null_texts else []
        columns = [pl.col(self._written[name]).cast(pl.Float64).alias(name) for name in exact]
        if null_texts:
            columns += [self._text(name).alias(name) for name in self.schema.categorical]
        parts = [block.frame.select(columns)] if columns else []
        faulty = bool(exact) and not all(
            parts[0].select(pl.col(exact).cast(pl.Float32).is_finite().all()).row(0)
        )
        others = self.schema.model_copy(
            update={
                "dense": tuple(name for name in self.schema.dense if name not in exact),
                "categorical": () if null_texts else self.schema.categorical,
            }
        )
        if others.needed and not faulty:
            source = replace(
                self.source, columns=tuple(n if n in others.needed else "" for n in self.source.columns)
            )
            parsed = self._parsed(block, source, RowParser(others, with_label=False))
            faulty = bool(parsed[FAULTY].any())
            parts.append(parsed.drop(LINE, FAULTY))
        if not faulty:
            return parts[0] if len(parts) == 1 else parts[0].hstack(parts[1])
        return self._with_spaces(block, null_texts=null_texts)

    def _with_spaces(self, block: ParquetBlock, *, null_texts: bool) -> pl.DataFrame:
        """Return rows some of which have spaces around numbers, or raise for the first that is at fault."""
        parser = RowParser(self.schema, with_label=False, spaces=True)
        raw = rows_of_parquet(block.frame.lazy(), self.types, self.source, self.schema)
        faults = parser.faults(raw).collect().sort(LINE).head(1)
        if faults.height:
            line, code, text = faults.row(0)
            raise row_error(block.before + line, code, text, source=self.source, parser=parser)
        return self._parsed(block, self.source, parser).drop(LINE, FAULTY)

    def _parsed(self, block: ParquetBlock, source: Source, parser: RowParser) -> pl.DataFrame:
        raw = rows_of_parquet(block.frame.lazy(), self.types, source, parser.schema)
        return parser.parse(raw).collect()

    @property
    def _written(self) -> dict[str, str]:
        """The name in the file of each needed column."""
        return {column: written for written, column in zip(self.types, self.source.columns, strict=True)}

    def _is_exact(self, name: str) -> bool:
        return self.types[self._written[name]] in EXACT_TYPES

    def _text(self, name: str) -> pl.Expr:
        written = self._written[name]
        return parquet_text(written, self.types[written], name, self.source, self.schema)
