"""The ids of text values: one hash table per field, of open addressing, that holds short values itself.

A slot is two words. Of a value of up to 11 bytes they are the bytes, the length and the id; of a longer one
a hash, the length and the id, and the bytes are compared where the vocabulary holds them. An empty slot has
a 0 in its second word. Vocabularies are read as Arrow's views of strings: 16 bytes each, which hold up to 12
bytes of text, or the place of more (Arrow columnar format, "Variable-size Binary View Layout").
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba import njit, types

from stampede.kernels.cpu.team import prefetch
from stampede.kernels.cpu.words import compiled, first_bytes, load_byte, load_word

LONGEST_SHORT = 11
ID_BITS = 28  # the id lies above this many bits of the second word

_LONG = np.uint64(15 << 24)
_KEY = np.uint64((1 << ID_BITS) - 1)
_LENGTH = np.uint64(0xFFFFFF)
_LOW_HALF = np.uint64(0xFFFFFFFF)
_MIX_ONE = np.uint64(0x9E3779B97F4A7C15)
_MIX_OTHER = np.uint64(0xC2B2AE3D27D4EB4F)
_INLINE = 12  # bytes that a view holds itself
_AHEAD = 12  # rows between the request of a slot and its use
_BLOCK_ROWS = 1024  # their ids, 26 fields wide, stay in the cache while the fields are gone through

_words, _int64s, _int32s = types.uint64[::1], types.int64[::1], types.int32[::1]
INDEX_TYPES = (_words, _int64s, _int64s, _int64s, _int64s, _int64s)
"""Of an index: slots, first slot and mask of each field; views, first buffer and buffers of vocabularies."""


@njit(inline="always")
def _hash_text(address: Any, length: Any) -> Any:
    """Hash at least eight bytes."""
    result = np.uint64(length) * _MIX_OTHER
    place = 0
    while place + 8 <= length:
        result = (result ^ load_word(address + place)) * _MIX_ONE
        result ^= result >> np.uint64(32)
        place += 8
    result = (result ^ load_word(address + length - 8)) * _MIX_ONE
    return result ^ (result >> np.uint64(32))


@njit(inline="always")
def key_of(address: Any, length: Any) -> Any:
    """Return the two words of a text, without an id; sixteen bytes from the address on must be there."""
    if length <= 8:
        return first_bytes(load_word(address), length), np.uint64(length) << np.uint64(24)
    if length <= LONGEST_SHORT:
        rest = first_bytes(load_word(address + 8), length - 8)
        return load_word(address), rest | (np.uint64(length) << np.uint64(24))
    return _hash_text(address, length), _LONG | (np.uint64(length) & _LENGTH)


@njit(inline="always")
def _text_of_view(view: Any, buffers: Any, first_buffer: Any) -> Any:
    """Return address and length of the text of the view at an address."""
    length = np.int64(load_word(view) & _LOW_HALF)
    if length <= _INLINE:
        return view + 4, length
    place = load_word(view + 8)
    return buffers[first_buffer + np.int64(place & _LOW_HALF)] + np.int64(place >> np.uint64(32)), length


@njit(inline="always")
def _key_of_view(view: Any, buffers: Any, first_buffer: Any) -> Any:
    """Return the two words of the text of a view, and where its bytes lie."""
    one, other = load_word(view), load_word(view + 8)
    length = np.int64(one & _LOW_HALF)
    if length <= LONGEST_SHORT:
        first = (one >> np.uint64(32)) | (other << np.uint64(32))
        rest = (other >> np.uint64(32)) | (np.uint64(length) << np.uint64(24))
        return first, rest, view + 4, length
    address, length = _text_of_view(view, buffers, first_buffer)
    return _hash_text(address, length), _LONG | (np.uint64(length) & _LENGTH), address, length


@njit(inline="always")
def slot_of(first: Any, second: Any, mask: Any) -> Any:
    """Return the slot where the search for a key begins."""
    mixed = (first ^ (second * _MIX_OTHER)) * _MIX_ONE
    return np.int64((mixed ^ (mixed >> np.uint64(29))) >> np.uint64(20)) & mask


@njit(inline="always")
def _same_text(one: Any, other: Any, length: Any) -> Any:
    """Whether two texts of at least eight bytes are the same."""
    place = 0
    while place + 8 <= length:
        if load_word(one + place) != load_word(other + place):
            return False
        place += 8
    return load_word(one + length - 8) == load_word(other + length - 8)


@njit(inline="always")
def find(
    first: Any,
    second: Any,
    slot: Any,
    address: Any,
    length: Any,
    field: Any,
    first_value_id: Any,
    slots: Any,
    starts: Any,
    masks: Any,
    views: Any,
    first_buffers: Any,
    buffers: Any,
) -> Any:
    """Return the id of a key in a field, -1 where it has none."""
    while True:
        place = 2 * (starts[field] + slot)
        stored = slots[place + 1]
        if stored == np.uint64(0):
            return -1
        if slots[place] == first and (stored & _KEY) == second:
            number = np.int64(stored >> np.uint64(ID_BITS))
            if length <= LONGEST_SHORT:
                return number
            view = views[field] + 16 * (number - first_value_id)
            other, other_length = _text_of_view(view, buffers, first_buffers[field])
            if other_length == length and _same_text(address, other, length):
                return number
        slot = (slot + 1) & masks[field]


@cache
def build_kernel() -> Callable[..., Any]:
    """Return ``build(field, count, first_id, *index)``: it fills in the slots of a field's values.

    ``views[field]`` is the address of ``count`` views; their ids follow ``first_id``.
    """

    def build(
        field: Any,
        count: Any,
        first_id: Any,
        slots: Any,
        starts: Any,
        masks: Any,
        views: Any,
        first_buffers: Any,
        buffers: Any,
    ) -> None:
        for number in range(count):
            view = views[field] + 16 * number
            first, second, _, _ = _key_of_view(view, buffers, first_buffers[field])
            slot = slot_of(first, second, masks[field])
            while slots[2 * (starts[field] + slot) + 1] != np.uint64(0):
                slot = (slot + 1) & masks[field]
            place = 2 * (starts[field] + slot)
            slots[place] = first
            slots[place + 1] = second | (np.uint64(first_id + number) << np.uint64(ID_BITS))

    return compiled(types.void(types.int64, types.int64, types.int64, *INDEX_TYPES), build)


@cache
def look_up_kernel() -> Callable[..., Any]:
    """Return the kernel that turns columns of views into ids.

    ``look_up(rows, places, of_views, of_validity, validity_offsets, first_texts, texts, null_id, unknown,
    first_value_id, ids, width, *index)``. For the k-th column, ``places[k]`` is its field, ``of_views[k]``
    and ``of_validity[k]`` (0: none is null) are addresses, ``texts`` from ``first_texts[k]`` on those of its
    buffers. ``ids[row * width + field]`` becomes its id: ``null_id`` for null and "", ``unknown[field]`` for
    a value that has none.
    """

    def look_up(
        rows: Any,
        places: Any,
        of_views: Any,
        of_validity: Any,
        validity_offsets: Any,
        first_texts: Any,
        texts: Any,
        null_id: Any,
        unknown: Any,
        first_value_id: Any,
        ids: Any,
        width: Any,
        slots: Any,
        starts: Any,
        masks: Any,
        views: Any,
        first_buffers: Any,
        buffers: Any,
    ) -> None:
        slots_address = np.int64(slots.ctypes.data)
        firsts, seconds = np.empty(_AHEAD, np.uint64), np.empty(_AHEAD, np.uint64)
        found, addresses = np.empty(_AHEAD, np.int64), np.empty(_AHEAD, np.int64)
        lengths = np.empty(_AHEAD, np.int64)
        for begin in range(0, rows, _BLOCK_ROWS):
            end = min(begin + _BLOCK_ROWS, rows)
            for k in range(len(places)):
                field = places[k]
                for ahead in range(begin, end + _AHEAD):
                    turn = ahead % _AHEAD
                    row = ahead - _AHEAD
                    if row >= begin:  # it was asked for _AHEAD rows ago
                        if lengths[turn] == 0:
                            number = null_id
                        else:
                            number = find(
                                firsts[turn],
                                seconds[turn],
                                found[turn],
                                addresses[turn],
                                lengths[turn],
                                field,
                                first_value_id,
                                slots,
                                starts,
                                masks,
                                views,
                                first_buffers,
                                buffers,
                            )
                            if number < 0:
                                number = unknown[field]
                        ids[row * width + field] = number
                    if ahead >= end:
                        continue
                    if of_validity[k] != 0:
                        bit = validity_offsets[k] + ahead
                        if (load_byte(of_validity[k] + bit // 8) >> (bit % 8)) & 1 == 0:
                            lengths[turn] = 0
                            continue
                    first, second, address, length = _key_of_view(
                        of_views[k] + 16 * ahead, texts, first_texts[k]
                    )
                    slot = slot_of(first, second, masks[field])
                    prefetch(slots_address + 16 * (starts[field] + slot))
                    firsts[turn], seconds[turn], found[turn] = first, second, slot
                    addresses[turn], lengths[turn] = address, length

    return compiled(
        types.void(
            types.int64,
            *(_int64s,) * 6,
            types.int64,
            _int64s,
            types.int64,
            _int32s,
            types.int64,
            *INDEX_TYPES,
        ),
        look_up,
    )
