"""Raw input -> a validated parquet spool, once, for every engine; fit and transform run on the spool.

The spool holds the accepted rows of all inputs in order, with the columns of :mod:`stampede.pipeline.rows`
and their number: the index among all accepted rows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeVar

import polars as pl

from stampede import InputError
from stampede.pipeline.errors import READ_ERRORS, first_line
from stampede.pipeline.progress import counted
from stampede.pipeline.publish import DiskFullError, disk_is_full
from stampede.pipeline.rawtext import escape_invalid_utf8, numbered_lines
from stampede.pipeline.rows import FAULT, FAULTY, RowParser, explain
from stampede.pipeline.scan import LINE, TEXT, TOO_FEW, TOO_MANY, scan_source
from stampede.pipeline.schema import Schema
from stampede.pipeline.sources import Source, describe

ROW = ".row"

BadRows = Literal["stop", "skip"]
OnRows = Callable[[int], None]
Result = TypeVar("Result")

PREVIEWED_ROWS = 10_000

# Polars reads many groups ahead of what writes: with large ones memory grows, with small ones little time.
ROWS_PER_GROUP = 1 << 14

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
        return pl.scan_parquet(self.parts, glob=False).drop(FAULTY, LINE)


def write_spool(
    inputs: Sequence[Path],
    schema: Schema,
    folder: Path,
    *,
    with_label: bool = True,
    bad_rows: BadRows = "stop",
    computed: Sequence[pl.Expr] = (),
    on_rows: OnRows | None = None,
) -> Spool:
    """Read, check and type every row of the inputs into parquet files in ``folder``.

    Parameters
    ----------
    with_label:
        Whether the label is read. Without it the file may have a label column, which is ignored, or none.
    bad_rows:
        ``stop`` raises at the first row that cannot be used; ``skip`` leaves such rows out and lists them.
    computed:
        Further columns, of what a row holds and its number.
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
        before = state_of(path)
        source = describe(path, schema, label="required" if with_label else "optional")
        parser = RowParser(schema, with_label)
        reader = _Reader(source, parser, folder, bad_rows, computed, on_rows)
        part = folder / f"part-{number:05d}.parquet"
        try:
            reader.preview()
            accepted, refused = reader.spool(part, first_row=sum(part_rows))
        except InputError as error:
            if state_of(path) != before:
                raise changed(path) from error
            raise
        if state_of(path) != before:
            raise changed(path)
        parts.append(part)
        part_rows.append(accepted)
        rejected.append(refused)
    return Spool(parts, part_rows, pl.concat(rejected))


def sample_rows(
    inputs: Sequence[Path], schema: Schema, *, rows: int, bad_rows: BadRows = "stop"
) -> pl.DataFrame:
    """Return the first good rows of each input, ``rows`` from all, typed as in a spool, unnumbered.

    Raises
    ------
    InputError
        As :func:`write_spool`, of the rows that are looked at.
    """
    frames = []
    for path in inputs:
        source = describe(path, schema)
        with tempfile.TemporaryDirectory() as folder:
            reader = _Reader(source, RowParser(schema, with_label=True), Path(folder), bad_rows, (), None)
            frames.append(reader.sample(max(rows // len(inputs), 1)))
    return pl.concat(frames)


@dataclass
class _Reader:
    """Reads one source; falls back to an escaped copy where the text is not UTF-8."""

    source: Source
    parser: RowParser
    folder: Path
    bad_rows: BadRows
    computed: Sequence[pl.Expr]
    on_rows: OnRows | None
    copy: Path | None = None

    def preview(self) -> None:
        """Look at the first few rows, so that a wrong schema shows at once."""

        def first_lines() -> pl.DataFrame:
            return self._rows().head(PREVIEWED_ROWS).filter(FAULTY).select(LINE).collect(engine="streaming")

        self._faults(self._run(first_lines)[LINE])

    def sample(self, rows: int) -> pl.DataFrame:
        """Return the good ones of the first rows."""
        self.preview()
        frame = self._run(lambda: self._rows().head(rows).collect(engine="streaming"))
        return frame.filter(~pl.col(FAULTY)).drop(FAULTY, LINE)

    def spool(self, part: Path, *, first_row: int) -> tuple[int, pl.DataFrame]:
        """Write the good rows to ``part``; return how many they are, and the rest with their reasons."""
        read = part.with_suffix(".read")

        def read_all() -> None:
            _write(self._numbered(self._told(self._rows()), first_row), read)

        self._run(read_all)
        rows = pl.scan_parquet(read, glob=False)
        lines = rows.filter(FAULTY).select(LINE).collect(engine="streaming")[LINE]
        faults = self._faults(lines)
        if len(faults) < len(lines):
            return self.spool(part, first_row=first_row)
        total = rows.select(pl.len()).collect().item()
        if lines.is_empty():
            read.replace(part)
        else:
            good = rows.filter(~pl.col(FAULTY)).drop(ROW)
            _write(self._numbered(good, first_row), part)
            read.unlink()
        return total - len(lines), self._explained(faults)

    def _raw(self) -> pl.LazyFrame:
        return scan_source(self.source, self.parser.schema, text_file=self.copy)

    def _rows(self) -> pl.LazyFrame:
        return self.parser.parse(self._raw())

    def _numbered(self, rows: pl.LazyFrame, first_row: int) -> pl.LazyFrame:
        # polars' own index is UInt32, and Criteo 1TB has more rows than that
        number = pl.col(ROW).cast(pl.UInt64) + pl.lit(first_row, pl.UInt64)
        return rows.with_row_index(ROW).with_columns(number).with_columns(self.computed)

    def _faults(self, lines: pl.Series) -> pl.DataFrame:
        """Read lines that seem to be at fault again; return line, code and text of those that are, in order.

        Where some are not, there are spaces around numbers, and the parser has learned it.

        Raises
        ------
        InputError
            There is one, and it is not to be left out.
        """
        if lines.is_empty():
            return pl.DataFrame(schema={LINE: pl.UInt32, FAULT: pl.UInt16, TEXT: pl.String})

        def look() -> pl.DataFrame:
            raw = self._raw().filter(pl.col(LINE).is_in(lines.implode())).head(len(lines))
            faults = replace(self.parser, spaces=True).faults(raw)
            return faults.sort(LINE).collect(engine="streaming")

        faults = self._run(look)
        if len(faults) < len(lines):
            if self.parser.spaces:
                raise changed(self.source.path)
            self.parser = replace(self.parser, spaces=True)
        if self.bad_rows == "stop" and len(faults):
            raise row_error(*faults.row(0), source=self.source, parser=self.parser)
        return faults

    def _explained(self, faults: pl.DataFrame) -> pl.DataFrame:
        rows = []
        for line, code, text in faults.iter_rows():
            fault = explain(code, text, self.source, self.parser.schema)
            rows.append((str(self.source.path), line, fault.column, fault.reason, text))
        return pl.DataFrame(rows, schema=REJECTED_SCHEMA, orient="row")

    def _told(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        if self.on_rows is None:
            return rows
        return rows.with_columns(counted(pl.col(LINE), pl.UInt32, self.on_rows))

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
        not_utf8 = tuple(escape_invalid_utf8(self.source.path, self.copy))
        self.parser = replace(self.parser, not_utf8=not_utf8)
        return self._run(query)

    def _unreadable(self, error: BaseException) -> InputError:
        """Return the reason why the file cannot be read, from a plain look at it where that tells more."""
        try:
            if self.source.format == "text":
                for _ in numbered_lines(self.source.path):
                    pass
        except InputError as reason:
            return reason
        return damaged(self.source.path, error)


def row_error(line: int, code: int, text: str, *, source: Source, parser: RowParser) -> InputError:
    """Return the error of a row that stops the job."""
    fault = explain(code, text, source, parser.schema)
    mend = "; mend the row"
    if parser.with_label:
        mend += ", or leave such rows out with --bad-rows skip"
    if line == 1 and code in (TOO_FEW, TOO_MANY):
        mend = f" (is it a {parser.schema.name} log?){mend}"
    return InputError(f"{fault.reason}{mend}", file=source.path, line=line, column=fault.column)


def damaged(path: Path, error: BaseException) -> InputError:
    """Return the error of a file that polars cannot read."""
    return InputError(f"cannot read it, it may be damaged: {first_line(error)}", file=path)


def changed(path: Path) -> InputError:
    """Return the error of a file that is another one than it was when reading began."""
    return InputError("the file changed while it was read: run this again when it is whole", file=path)


def state_of(path: Path) -> tuple[int, ...]:
    """Return what changes when a file is written to or replaced; nothing where it is gone."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _write(rows: pl.LazyFrame, file: Path) -> None:
    rows.sink_parquet(file, compression="lz4", statistics=False, row_group_size=ROWS_PER_GROUP)


def _is_not_utf8(error: BaseException) -> bool:
    return "utf8" in str(error).lower().replace("-", "")
