"""Lines of text -> typed rows, as :mod:`stampede.pipeline.rows` defines them, of a few lines in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import polars as pl

from stampede.pipeline.errors import READ_ERRORS
from stampede.pipeline.rows import FAULTY, RowParser
from stampede.pipeline.scan import LINE, scan_source
from stampede.pipeline.schema import Schema
from stampede.pipeline.sources import Source
from stampede.pipeline.spool import damaged, row_error


@dataclass(frozen=True)
class TextRows:
    """Gives lines of one text, without its header, their types; the label is not read."""

    source: Source
    schema: Schema

    def typed(self, lines: bytes, numbers: Sequence[int] | range) -> pl.DataFrame:
        """Return the typed rows of some lines; blank lines are no rows.

        Parameters
        ----------
        numbers:
            The number of each line in its file.

        Raises
        ------
        InputError
            One of the rows cannot be used; names the first.
        """
        source = replace(self.source, header_line=None, byte_order_mark=False)
        parser = RowParser(self.schema, with_label=False)
        text, not_utf8 = _as_utf8(lines)
        raw = scan_source(source, self.schema, text_file=text)
        try:
            if not not_utf8:
                rows = parser.parse(raw).collect()
                if not rows[FAULTY].any():
                    return rows.drop(FAULTY, LINE)
            # there may be spaces around numbers, with which reading is slower
            parser = replace(parser, spaces=True, not_utf8=not_utf8)
            faults = parser.faults(raw).collect().sort(LINE).head(1)
            if faults.height:
                line, code, shown = faults.row(0)
                raise row_error(numbers[line - 1], code, shown, source=source, parser=parser)
            return parser.parse(raw).collect().drop(FAULTY, LINE)
        except READ_ERRORS as error:
            raise damaged(source.path, error) from error


def _as_utf8(lines: bytes) -> tuple[bytes, tuple[int, ...]]:
    r"""Return lines with each byte that is not UTF-8 as ``\xNN``, and the numbers from 1 of these lines."""
    try:
        lines.decode("utf-8")
    except UnicodeDecodeError:
        escaped = lines.decode("utf-8", "backslashreplace").encode("utf-8")
        pairs = zip(lines.split(b"\n"), escaped.split(b"\n"), strict=True)
        return escaped, tuple(number for number, (one, other) in enumerate(pairs, 1) if one != other)
    return lines, ()
