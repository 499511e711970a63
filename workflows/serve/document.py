"""The body of a request -> its rows.

Numbers keep the text that they have in the body, so that an id of 30 digits or ``1.50`` stays what it is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NoReturn

from stampede.workflows.serve.refusal import Refusal

FORM = 'a row such as {"I1": 1, "C1": "68fd1e64"}, or {"rows": [ROW, ...]}'

SHOWN_CHARACTERS = 60

COMMAS_IN_TEXT = 100_000
"""Commas that a body may hold besides those between its values."""


@dataclass(frozen=True)
class Document:
    """The rows of a request, and whether it is one row that stands by itself."""

    rows: list[dict[str, Any]]
    single: bool


def parse_document(
    body: bytes | bytearray, *, max_rows: int, columns: int, rows_is_a_column: bool = False
) -> Document:
    """Parse a body; values are strings (numbers too), bools, None, or what no row can hold.

    Parameters
    ----------
    columns:
        How many a row may name. A body with commas for many more values than all rows can hold is not parsed:
        16 MB of ``1,1,1`` would become half a gigabyte.
    rows_is_a_column:
        Whether the log has a column ``rows``: then a value of that name that is no list is that column's.

    Raises
    ------
    Refusal
        400 where it is no JSON, 413 where it has more rows, 422 where it has another form.
    """
    if body.count(b",") > max_rows * columns + COMMAS_IN_TEXT:
        raise _too_many(max_rows)
    document = _parsed(body, max_rows)
    if not isinstance(document, dict):
        raise Refusal(422, f"the body must be {FORM}")
    rows = document.get("rows")
    if not isinstance(rows, list):
        if "rows" in document and not rows_is_a_column:
            raise Refusal(422, f"rows is no list: the body must be {FORM}")
        return Document([document], single=True)
    if len(document) > 1:
        other = next(name for name in document if name != "rows")
        raise Refusal(422, f"{_shown(other)} stands beside rows: the body must be {FORM}")
    if len(rows) > max_rows:
        raise _too_many(max_rows)
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            raise Refusal(422, f"row {index}: it is no object")
    return Document(rows, single=False)


def _parsed(body: bytes | bytearray, max_rows: int) -> Any:
    objects = 0

    def make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal objects
        objects += 1
        if objects > max_rows + 1:  # before millions of them fill the memory
            raise _too_many(max_rows)
        made = dict(pairs)
        if len(made) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise Refusal(400, f"the body names {_shown(twice)} twice in one object")
        return made

    try:
        text = body.decode("utf-8")
        return json.loads(
            text, object_pairs_hook=make_object, parse_int=str, parse_float=str, parse_constant=_no_number
        )
    except UnicodeDecodeError:
        raise Refusal(400, "the body is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        reason = error.msg[:1].lower() + error.msg[1:]
        raise Refusal(400, f"the body is not JSON: {reason} (character {error.pos})") from None
    except RecursionError:
        raise Refusal(400, "the body is nested too deep") from None


def _no_number(name: str) -> NoReturn:
    raise Refusal(400, f"the body is not JSON: {name} is no number")


def _too_many(max_rows: int) -> Refusal:
    return Refusal(413, f"the body holds more than {max_rows} rows: send them in several requests")


def _shown(text: str) -> str:
    text = text.encode("ascii", "backslashreplace").decode()
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
