"""Rows of separated text -> numbers and ids in one pass over the bytes.

It reads what most rows of a log are: the right number of fields, plain numbers, no quotes. Every other row is
named for another reader, which also knows what is wrong with it; so nothing is decided here twice.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba import njit, types

from stampede.kernels.cpu.team import prefetch
from stampede.kernels.cpu.values import INDEX_TYPES, find, key_of, slot_of
from stampede.kernels.cpu.words import ONES, compiled, load_byte, load_word, matches, trailing_zeros

PADDING = 16
"""Bytes that must be there after a text."""

SKIPPED, NUMBER, VALUE, MOMENT = 0, 1, 2, 3
"""What a column of the text is."""

ROW, LINE, START, STOP = 0, 1, 2, 3
"""Of a row for another reader: its number, its line from 0, and where its text lies."""

ROWS, LINES, LEFT = 0, 1, 2
"""Of what was read: rows, lines, and how many rows are for another reader."""

_SPACE, _QUOTE, _LINE_END, _RETURN = 32, 34, 10, 13
_MINUS, _POINT, _ZERO = 45, 46, 48
_MOST_DIGITS = 15  # of which float64 holds every number; and every power of ten up to them
_MOMENT_DIGITS = 8
_POWERS = tuple(10.0**k for k in range(_MOST_DIGITS + 1))
_UNUSABLE = np.inf  # no plain number is infinite

_int8s, _int32s, _int64s, _floats = types.int8[::1], types.int32[::1], types.int64[::1], types.float64[::1]


@njit(inline="always")
def _plain_number(address: Any, length: Any, powers: Any) -> Any:
    """Return the number of a text like -12 or 3.75; infinity for any other text.

    A quotient of two exact float64 is rounded once, so it is the nearest number (Clinger, "How to read
    floating point numbers accurately", 1990).
    """
    place = 0
    negative = load_byte(address) == _MINUS
    if negative:
        place = 1
    digits, point = 0, -1
    mantissa = 0
    if length - place > _MOST_DIGITS + 1:
        return _UNUSABLE
    while place < length:
        byte = load_byte(address + place)
        if byte == _POINT and point < 0 and digits > 0:
            point = digits
        elif _ZERO <= byte <= _ZERO + 9:
            mantissa = 10 * mantissa + byte - _ZERO
            digits += 1
        else:
            return _UNUSABLE
        place += 1
    if digits == 0 or digits > _MOST_DIGITS or point == digits:
        return _UNUSABLE
    number = np.float64(mantissa)
    if point > 0:
        number /= powers[digits - point]
    return -number if negative else number


@njit(inline="always")
def _moment(address: Any, length: Any) -> Any:
    """Return the number that eight digits are; -1 for any other text."""
    if length != _MOMENT_DIGITS:
        return -1
    number = 0
    for place in range(_MOMENT_DIGITS):
        byte = load_byte(address + place)
        if byte < _ZERO or byte > _ZERO + 9:
            return -1
        number = 10 * number + byte - _ZERO
    return number


@njit(inline="always")
def _end_of_field(address: Any, separators: Any, line_ends: Any) -> Any:
    while True:
        word = load_word(address)
        found = matches(word, separators) | matches(word, line_ends)
        if found != np.uint64(0):
            return address + (trailing_zeros(found) >> 3)
        address += 8


@njit(inline="always")
def _end_of_line(address: Any, line_ends: Any) -> Any:
    while True:
        found = matches(load_word(address), line_ends)
        if found != np.uint64(0):
            return address + (trailing_zeros(found) >> 3)
        address += 8


@njit(inline="always")
def _has_quote(start: Any, stop: Any, quotes: Any) -> Any:
    while start < stop:
        found = matches(load_word(start), quotes)
        if found != np.uint64(0):
            return start + (trailing_zeros(found) >> 3) < stop
        start += 8
    return False


@cache
def parse_kernel() -> Callable[..., Any]:
    """Return the kernel that reads rows.

    ``parse(text, size, separator, kinds, places, null_table, null_id, unknown, first_value_id, numbers,
    moments, capacity, ids, left, *index) -> (rows, lines, left)``.

    ``text`` is the address of ``size`` bytes of whole lines, the last one with its end, and of
    :data:`PADDING` more. ``kinds`` and ``places`` say of each column what it is, and which number or field.
    ``null_table`` is the field in whose values numbers are looked up that mean null; -1 for none. Where
    ``unknown[field]`` is negative, rows with a value that has no id are for another reader.

    Written are ``numbers[place * capacity + row]`` (NaN for null), ``moments[row]`` (eight digits as a
    number), ``ids[row * fields + place]``, and four words in ``left`` for each row for another reader.
    Nothing stands in the other three for such a row but what can be computed with.
    """

    def parse(
        text: Any,
        size: Any,
        separator: Any,
        kinds: Any,
        places: Any,
        null_table: Any,
        null_id: Any,
        unknown: Any,
        first_value_id: Any,
        numbers: Any,
        moments: Any,
        capacity: Any,
        ids: Any,
        left: Any,
        slots: Any,
        starts: Any,
        masks: Any,
        views: Any,
        first_buffers: Any,
        buffers: Any,
    ) -> Any:
        slots_address = np.int64(slots.ctypes.data)
        separators, line_ends = np.uint64(separator) * ONES, np.uint64(_LINE_END) * ONES
        quotes = np.uint64(_QUOTE) * ONES
        may_be_quoted = separator != 9
        powers = np.array(_POWERS)
        width, fields = len(kinds), len(unknown)
        firsts, seconds = np.empty(fields, np.uint64), np.empty(fields, np.uint64)
        found, addresses = np.empty(fields, np.int64), np.empty(fields, np.int64)
        lengths = np.zeros(fields, np.int64)
        rows = lines = others = 0
        here, stop = text, text + size
        while here < stop:
            line_start = here
            plain = True
            column = 0
            while True:
                end = _end_of_field(here, separators, line_ends)
                last = load_byte(end) == _LINE_END
                length = end - here
                if last and length > 0 and load_byte(end - 1) == _RETURN:
                    length -= 1
                if last and column == 0:  # a blank line is no row
                    place = 0
                    while place < length and load_byte(here + place) == _SPACE:
                        place += 1
                    if place == length:
                        break
                if column >= width or last != (column == width - 1):
                    plain = False
                kind = kinds[column] if plain else 0
                if kind == VALUE:
                    field = places[column]
                    lengths[field] = length
                    if length > 0:
                        first, second = key_of(here, length)
                        slot = slot_of(first, second, masks[field])
                        prefetch(slots_address + 16 * (starts[field] + slot))
                        firsts[field], seconds[field], found[field] = first, second, slot
                        addresses[field] = here
                elif kind == NUMBER:
                    number = np.nan
                    if length > 0:
                        null = False
                        if null_table >= 0:
                            first, second = key_of(here, length)
                            slot = slot_of(first, second, masks[null_table])
                            null = (
                                find(
                                    first,
                                    second,
                                    slot,
                                    here,
                                    length,
                                    null_table,
                                    first_value_id,
                                    slots,
                                    starts,
                                    masks,
                                    views,
                                    first_buffers,
                                    buffers,
                                )
                                >= 0
                            )
                        if not null:
                            number = _plain_number(here, length, powers)
                            plain = number != _UNUSABLE
                    numbers[places[column] * capacity + rows] = number
                elif kind == MOMENT:
                    moment = _moment(here, length)
                    plain = moment >= 0
                    moments[rows] = moment
                here = end
                column += 1
                if last:
                    break
                if not plain:
                    here = _end_of_line(end, line_ends)
                    break
                here = end + 1
            if column == 0:
                here = end + 1
                lines += 1
                continue
            if plain and may_be_quoted and _has_quote(line_start, here, quotes):
                plain = False
            if plain:
                for field in range(fields):
                    if lengths[field] == 0:
                        number_of_value = null_id
                    else:
                        number_of_value = find(
                            firsts[field],
                            seconds[field],
                            found[field],
                            addresses[field],
                            lengths[field],
                            field,
                            first_value_id,
                            slots,
                            starts,
                            masks,
                            views,
                            first_buffers,
                            buffers,
                        )
                        if number_of_value < 0:
                            number_of_value = unknown[field]
                            plain = plain and number_of_value >= 0
                    ids[rows * fields + field] = number_of_value
            if not plain:
                for place in range(fields):
                    ids[rows * fields + place] = null_id
                for place in range(len(numbers) // capacity):
                    numbers[place * capacity + rows] = np.nan
                left[4 * others + ROW] = rows
                left[4 * others + LINE] = lines
                left[4 * others + START] = line_start - text
                left[4 * others + STOP] = here - text
                others += 1
                if len(moments) > 0:
                    moments[rows] = -1
            here += 1
            lines += 1
            rows += 1
        return rows, lines, others

    return compiled(
        types.UniTuple(types.int64, 3)(
            types.int64,
            types.int64,
            types.int64,
            _int8s,
            _int32s,
            types.int64,
            types.int64,
            _int64s,
            types.int64,
            _floats,
            _int64s,
            types.int64,
            _int32s,
            _int64s,
            *INDEX_TYPES,
        ),
        parse,
    )
