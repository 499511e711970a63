"""Raw input -> a validated parquet spool, once, for every engine; fit and transform run on the spool.

The spool holds the accepted rows of all inputs in order, with the columns of :mod:`stampede.pipeline.rows`.
A row's number is its index there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Literal, TypeVar

import polars as pl

from stampede import InputError
from stampede.pipeline.errors import READ_ERRORS, first_line
from stampede.pipeline.publish import DiskFullError, disk_is_full
from stampede.pipeline.rawtext import escape_invalid_utf8, numbered_lines
from stampede.pipeline.rows import FAULT, GOOD, explain, parse_rows
from stampede.pipeline.scan import LINE, TEXT, TOO_FEW, TOO_MANY, scan_source
from stampede.pipeline.schema import Schema
from stampede.pipeline.sources import Source, describe

ROW = ".row"

BadRows = Literal["stop", "skip"]
OnRows = Callable[[int], None]
Result = TypeVar("Result")

PREVIEWED_ROWS = 10_000

REJECTED_SCHEMA = {
    "file": pl.String,
    "line": pl.UInt32,
    "column": pl.String,
    "reason": pl.String,
    "text": pl.String,
}


@dataclass(frozen=True)
class Spool:
    """The accepted rows of the input, typed, and the rejected ones.

    Attributes
    ----------
    parts:
        Parquet files, one per input file, in order.
    part_rows:
        Number of accepted rows of each.
    rejected:
        Frame of file, line, column, reason and text of each row that was left out.
    """

    parts: list[Path]
    part_rows: list[int]
    rejected: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=REJECTED_SCHEMA))

    @property
    def rows(self) -> int:
        """Number of accepted rows."""
        return sum(self.part_rows)

    def scan(self) -> pl.LazyFrame:
        """Return the accepted rows in order, with their number as ``.row`` (UInt64)."""
        # Numbered part by part: polars' own row index is UInt32, and Criteo 1TB has more rows than that.
        frames = []
        for part, first_row in zip(self.parts, accumulate(self.part_rows, initial=0), strict=False):
            accepted = pl.scan_parquet(part, glob=False).filter(pl.col(FAULT) == GOOD)
            row = pl.col(ROW).cast(pl.UInt64) + pl.lit(first_row, pl.UInt64)
            frames.append(accepted.drop(FAULT, LINE, TEXT).with_row_index(ROW).with_columns(row))
        return pl.concat(frames)


def write_spool(
    inputs: Sequence[Path],
    schema: Schema,
    folder: Path,
    *,
    with_label: bool = True,
    bad_rows: BadRows = "stop",
    on_rows: OnRows | None = None,
) -> Spool:
    """Read, check and type every row of the inputs into parquet files in ``folder``.

    Parameters
    ----------
    with_label:
        Whether the label is read. Without it the file may have a label column, which is ignored, or none.
    bad_rows:
        ``stop`` raises at the first row that cannot be used; ``skip`` leaves such rows out and lists them.
    on_rows:
        Called with the number of rows read since the last call, from any thread.

    Raises
    ------
    InputError
        A file that cannot be read, a column that is missing, a row that cannot be used.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts: list[Path] = []
    rejected = [pl.DataFrame(schema=REJECTED_SCHEMA)]
    part_rows: list[int] = []
    for number, path in enumerate(inputs):
        source = describe(path, schema, label="required" if with_label else "optional")
        reader = _Reader(source, schema, with_label, folder, on_rows)
        if bad_rows == "stop":
            reader.raise_first(reader.preview())
        part = folder / f"part-{number:05d}.parquet"
        accepted, refused = reader.spool(part, bad_rows)
        parts.append(part)
        part_rows.append(accepted)
        rejected.append(refused)
    return Spool(parts, part_rows, pl.concat(rejected))


@dataclass
class _Reader:
    """Reads one source; falls back to an escaped copy where the text is not UTF-8."""

    source: Source
    schema: Schema
    with_label: bool
    folder: Path
    on_rows: OnRows | None
    copy: Path | None = None
    not_utf8: tuple[int, ...] = ()

    def frame(self) -> pl.LazyFrame:
        raw = scan_source(self.source, self.schema, text_file=self.copy)
        return parse_rows(raw, self.schema, with_label=self.with_label, not_utf8=self.not_utf8)

    def preview(self) -> pl.DataFrame:
        """Return the faulty rows among the first few, so that a wrong schema shows at once."""
        first = self._run(lambda: self.frame().head(PREVIEWED_ROWS).collect(engine="streaming"))
        return first.filter(pl.col(FAULT) != GOOD)

    def spool(self, part: Path, bad_rows: BadRows) -> tuple[int, pl.DataFrame]:
        """Write the rows to ``part``; return how many are good, and the rest with their reasons."""
        self._run(lambda: self._counted(self.frame()).sink_parquet(part, compression="lz4"))
        faulty = pl.scan_parquet(part, glob=False).filter(pl.col(FAULT) != GOOD)
        bad = faulty.select(LINE, FAULT, TEXT).collect(engine="streaming").sort(LINE)
        if bad_rows == "stop":
            self.raise_first(bad)
        total = pl.scan_parquet(part, glob=False).select(pl.len()).collect().item()
        return total - bad.height, self._explained(bad)

    def raise_first(self, bad: pl.DataFrame) -> None:
        """Raise for the first of the faulty rows, if there is one."""
        if bad.height:
            line, code, text = bad.select(LINE, FAULT, TEXT).row(0)
            fault = explain(code, text, self.source, self.schema)
            mend = (
                "; mend the row, or leave such rows out with --bad-rows skip"
                if self.with_label
                else "; mend the row"
            )
            if line == 1 and code in (TOO_FEW, TOO_MANY):
                mend = f" (is it a {self.schema.name} log?){mend}"
            raise InputError(f"{fault.reason}{mend}", file=self.source.path, line=line, column=fault.column)

    def _explained(self, bad: pl.DataFrame) -> pl.DataFrame:
        rows = []
        for line, code, text in bad.iter_rows():
            fault = explain(code, text, self.source, self.schema)
            rows.append((str(self.source.path), line, fault.column, fault.reason, text))
        return pl.DataFrame(rows, schema=REJECTED_SCHEMA, orient="row")

    def _counted(self, frame: pl.LazyFrame) -> pl.LazyFrame:
        if self.on_rows is None:
            return frame
        on_rows = self.on_rows

        def count(lines: pl.Series) -> pl.Series:
            on_rows(len(lines))
            return lines

        # by line, not by fault: a column that is constant reaches the function as a single value
        return frame.with_columns(
            pl.col(LINE).map_batches(count, return_dtype=pl.UInt32, is_elementwise=True)
        )

    def _run(self, query: Callable[[], Result]) -> Result:
        """Run a query on the source; where its text is not UTF-8, say which line or go on with a copy."""
        try:
            return query()
        except READ_ERRORS as error:
            if disk_is_full(error, self.folder):
                raise DiskFullError(self.folder) from error
            if self.copy is not None or not _is_not_utf8(error):
                raise self._unreadable(error) from error
        self.copy = self.folder / "escaped.txt"
        self.not_utf8 = tuple(escape_invalid_utf8(self.source.path, self.copy))
        return self._run(query)

    def _unreadable(self, error: BaseException) -> InputError:
        """Return the reason why the file cannot be read, from a plain look at it where that tells more."""
        try:
            if self.source.format == "text":
                for _ in numbered_lines(self.source.path):
                    pass
        except InputError as reason:
            return reason
        return InputError(f"cannot read it, it may be damaged: {first_line(error)}", file=self.source.path)


def _is_not_utf8(error: BaseException) -> bool:
    return "utf8" in str(error).lower().replace("-", "")
