"""Which files the input is, and how each of them is written: format, separator, header, columns."""

from __future__ import annotations

import codecs
import glob
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import polars as pl

from stampede import InputError, SchemaError
from stampede.pipeline.errors import READ_ERRORS, first_line
from stampede.pipeline.rawtext import numbered_lines, open_bytes, split_fields
from stampede.pipeline.schema import Schema

SNIFFED_LINES = 100
FIRST_LINES = 10 * SNIFFED_LINES  # some may be blank
SHOWN_COLUMNS = 10
LABEL_TEXT = re.compile(r" *([-+]?[0-9.]+|true|false) *$", re.IGNORECASE)
SEPARATORS = ("\t", ",", ";", "|")

FOREIGN_ARCHIVES = {
    b"BZh": "a bzip2 archive",
    b"\xfd7zXZ": "an xz archive",
    b"PK\x03\x04": "a zip archive",
    b"7z\xbc\xaf": "a 7z archive",
    b"\x04\x22\x4d\x18": "an lz4 archive",
    b"\x50\x2a\x4d\x18": "a zstd archive that begins with a skippable frame",
}


@dataclass(frozen=True)
class Source:
    """One input file and how it is written.

    Attributes
    ----------
    path:
        The file.
    format:
        ``text`` (plain, gzip or zstd) or ``parquet``.
    columns:
        Names of its columns in file order, as the schema spells them.
    separator:
        Field separator of a text file.
    header_line:
        Line of the header, from 1; None without a header.
    byte_order_mark:
        Whether the text begins with U+FEFF.
    """

    path: Path
    format: Literal["text", "parquet"]
    columns: tuple[str, ...]
    separator: str = "\t"
    header_line: int | None = None
    byte_order_mark: bool = False


def resolve_inputs(inputs: Sequence[str | Path]) -> list[Path]:
    """Expand file names and glob patterns to the files they name, in order.

    The matches of a pattern are sorted by name, numbers in it by their value: day_2 stands before day_10. A
    name that exists is taken as it is, also when it contains wildcard characters.

    Raises
    ------
    InputError
        A name or pattern that matches no file, or names something else than a file.
    """
    files: list[Path] = []
    for name in inputs:
        path = Path(name)
        if path.is_dir():
            raise InputError(f"this is a folder; name its files, for example {path}/*.tsv", file=path)
        if path.is_file():
            files.append(path)
            continue
        if os.path.lexists(path) and not path.is_symlink():
            raise InputError("not a regular file: write the log to one first", file=path)
        # Path.glob takes no absolute pattern.
        found = glob.glob(str(name), recursive=True)  # noqa: PTH207
        matches = sorted((match for match in found if Path(match).is_file()), key=_natural_order)
        if not matches:
            reason = "no file matches this pattern" if glob.has_magic(str(name)) else "no such file"
            raise InputError(reason, file=path)
        files += [Path(match) for match in matches]
    if not files:
        raise InputError("no input file was given")
    return files


def _natural_order(name: str) -> tuple[list[tuple[int, int | str]], str]:
    parts = re.split(r"([0-9]+)", name)
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in parts], name


def describe(path: Path, schema: Schema, *, label: Literal["required", "optional"] = "required") -> Source:
    """Find out how a file is written, from its first lines and the schema.

    Parameters
    ----------
    label:
        Whether the label column must be there; for prediction it need not.

    Raises
    ------
    InputError
        The file cannot be read, or a column is missing or doubled; the message names it.
    """
    if _is_parquet(path):
        names = list(parquet_types(path))
        columns = _match_columns(names, schema, path=path, line=None, label=label)
        return Source(path, "parquet", columns)

    with open_bytes(path) as stream:
        start = stream.read(8)
    return describe_text(_first_lines(path), start, path, schema, label=label)


def describe_text(
    first_lines: Iterable[str],
    start: bytes,
    path: Path,
    schema: Schema,
    *,
    label: Literal["required", "optional"] = "required",
) -> Source:
    """Find out how a text is written; see :func:`describe`.

    Parameters
    ----------
    first_lines:
        Its first lines, without their ends; or all of them.
    start:
        Its first eight bytes.
    path:
        Where it comes from.
    """
    _refuse_foreign(start, path)
    lines = list(first_lines)
    byte_order_mark = bool(lines) and lines[0].startswith("\ufeff")
    lines[:1] = [line.removeprefix("\ufeff") for line in lines[:1]]
    sample = [(number, line) for number, line in enumerate(lines, 1) if line.strip(" ")][:SNIFFED_LINES]
    if not sample:
        separator = schema.separator or "\t"
        return Source(path, "text", schema.columns, separator, byte_order_mark=byte_order_mark)
    separator = schema.separator or _guess_separator([line for _, line in sample], schema)
    first_number, first_line = sample[0]
    names = [name.strip().strip('"') for name in split_fields(first_line, separator) or [first_line]]
    is_header = _looks_like_header(names, schema) if schema.header is None else schema.header
    if is_header:
        columns = _match_columns(names, schema, path=path, line=first_number, label=label)
        return Source(path, "text", columns, separator, first_number, byte_order_mark)
    columns = schema.columns
    if label == "optional":
        widths = Counter(line.count(separator) + 1 for _, line in sample)
        if widths.most_common(1)[0][0] == len(columns) - 1:
            columns = tuple(name for name in columns if name != schema.label)
    return Source(path, "text", columns, separator, None, byte_order_mark)


def _is_parquet(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            return stream.read(4) == b"PAR1"
    except OSError as error:
        raise InputError(f"cannot read it: {error.strerror}", file=path) from error


def _refuse_foreign(start: bytes, path: Path) -> None:
    """Raise for archives and encodings that cannot be read, before they show as odd characters in line 1."""
    for magic, name in FOREIGN_ARCHIVES.items():
        if start.startswith(magic):
            raise InputError(f"the file is {name}: unpack it, or pack it with gzip or zstd", file=path)
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise InputError("the text is UTF-16: convert it to UTF-8", file=path, line=1)


def parquet_types(path: Path) -> dict[str, pl.DataType]:
    """Return the columns of a parquet file.

    Raises
    ------
    InputError
        The file cannot be read or is damaged.
    """
    try:
        return dict(pl.scan_parquet(path, glob=False).collect_schema())
    except READ_ERRORS as error:
        raise InputError(f"damaged parquet file: {first_line(error)}", file=path) from error


def _first_lines(path: Path) -> Iterator[str]:
    """Yield the first lines, some of which may be blank; bytes that are not UTF-8 are replaced."""
    for number, raw in numbered_lines(path):
        yield raw.decode("utf-8", "replace")
        if number >= FIRST_LINES:
            return


def _guess_separator(lines: list[str], schema: Schema) -> str:
    """Return the separator that splits the lines best.

    That is the one under which the first line names most columns of the schema; then the one that gives most
    lines the right number of fields, or nearly; then the commonest one.
    """
    width = len(schema.columns)
    known = {name.casefold() for name in schema.columns}

    def fit(separator: str) -> tuple[int, int, int, int]:
        counts = [line.count(separator) + 1 for line in lines]
        named = sum(name.strip(' "').casefold() in known for name in lines[0].split(separator))
        exact = sum(count == width for count in counts)
        near = sum(abs(count - width) <= 1 < count for count in counts)
        return (named if named > 1 else 0), exact, near, sum(counts)

    return max(SEPARATORS, key=fit)


def _looks_like_header(names: list[str], schema: Schema) -> bool:
    """Whether the first line names columns: most of those needed, or the label where no label can stand."""
    folded = [name.casefold() for name in names]
    needed = {name.casefold() for name in schema.needed}
    if 2 * sum(name in needed for name in folded) > min(len(names), len(needed)):
        return True
    position = schema.columns.index(schema.label)
    in_place = names[position : position + 1]
    return schema.label.casefold() in folded and not any(LABEL_TEXT.match(text) for text in in_place)


def _match_columns(
    names: list[str], schema: Schema, *, path: Path, line: int | None, label: Literal["required", "optional"]
) -> tuple[str, ...]:
    """Return a file's column names as the schema spells them; exact names first, then regardless of case."""
    known = (*schema.needed, schema.label)
    exact = set(names) & set(known)
    by_case = {name.casefold(): name for name in known if name not in exact}
    columns = tuple(name if name in exact else by_case.get(name.casefold(), name) for name in names)
    for column in known:
        if columns.count(column) > 1:
            raise InputError("the header names this column twice", file=path, line=line, column=column)
        if column not in columns and not (column == schema.label and label == "optional"):
            lacking = (
                "the file has no such column" if line is None else "the header does not name this column"
            )
            others = [name for name in columns if name not in known][:SHOWN_COLUMNS]
            besides = f" (it has {', '.join(others)} besides)" if others else ""
            reason = f"{lacking}{besides}: add it, or give a schema without it"
            raise InputError(reason, file=path, line=line, column=column)
    return columns


def parquet_text(written: str, dtype: pl.DataType, column: str, source: Source, schema: Schema) -> pl.Expr:
    """Return the text of a parquet column, "" where it is null: what a text file of the same log would hold.

    Parameters
    ----------
    written, dtype:
        Name and type of the column in the file.
    column:
        The column of the schema that it is.

    Raises
    ------
    SchemaError
        The type has no text that every writer would give it: a category of floating-point numbers or times,
        or a nested column.
    """
    text = pl.col(written)
    role = "a category" if column in schema.categorical else "a value"
    readable = not (dtype.is_nested() or dtype in (pl.Binary, pl.Time, pl.Duration, pl.Object))
    if column in schema.categorical:
        readable &= not (dtype.is_float() or dtype.is_decimal() or isinstance(dtype, pl.Datetime))
    if not readable:
        raise SchemaError(
            f"{source.path}, column {column}: {dtype} cannot be read as {role}: cast it to integer or string"
        )
    if isinstance(dtype, pl.Datetime):
        moment = text.dt.convert_time_zone("UTC") if dtype.time_zone else text
        text = moment.dt.strftime("%Y-%m-%d %H:%M:%S")
    elif dtype == pl.Date:
        text = text.dt.strftime("%Y-%m-%d")
    elif dtype == pl.Boolean and column in schema.dense:
        text = text.cast(pl.Int8)
    return text.cast(pl.String).fill_null("")
