"""Text as it comes, from a file or standard input, in blocks of whole lines."""

from __future__ import annotations

import io
import os
import select
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from stampede import InputError
from stampede.pipeline.rawtext import open_bytes, reading, text_of
from stampede.pipeline.schema import Schema
from stampede.pipeline.sources import FIRST_LINES, Source, describe_text

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

STANDARD_INPUT = Path("standard input")
STDIN_DESCRIPTOR = 0

BLOCK_BYTES = 4 << 20
PADDING = 16  # bytes after a block, so that words can be read at its end

BYTE_ORDER_MARK = "\ufeff".encode()
PARQUET_MAGIC = b"PAR1"
SECONDS_BETWEEN_LOOKS = 0.1


@dataclass(frozen=True)
class TextBlock:
    """Whole lines of a text.

    Attributes
    ----------
    memory:
        uint8: the lines, the last one with its end, from ``start`` to ``stop``, and some bytes more.
    first_line:
        Number of the first of them in the text, from 1.
    """

    memory: npt.NDArray[np.uint8]
    start: int
    stop: int
    first_line: int

    def text(self) -> bytes:
        """Return the lines."""
        return self.memory[self.start : self.stop].tobytes()


class _StandardInput(io.RawIOBase):
    """Standard input, read in a thread that ends when it is told to, also while there is nothing to read."""

    def __init__(self, stop: threading.Event) -> None:
        super().__init__()
        self._stop = stop
        self._kept = b""

    def readable(self) -> bool:
        return True

    def start(self) -> bytes:
        """Return the first four bytes, without taking them."""
        while len(self._kept) < 4 and (more := self._take(4 - len(self._kept))):
            self._kept += more
        return self._kept

    def readinto(self, buffer: WriteableBuffer) -> int:
        target = memoryview(buffer)
        text = self._kept[: len(target)] or self._take(len(target))
        self._kept = self._kept[len(text) :]
        target[: len(text)] = text
        return len(text)

    def _take(self, size: int) -> bytes:
        while not self._stop.is_set():
            ready, _, _ = select.select([STDIN_DESCRIPTOR], [], [], SECONDS_BETWEEN_LOOKS)
            if ready:
                return os.read(STDIN_DESCRIPTOR, size)
        return b""


def blocks_of_file(source: Source, *, size: int = BLOCK_BYTES) -> Iterator[TextBlock]:
    """Yield the rows of a text file, without its header.

    Raises
    ------
    InputError
        The file cannot be read.
    """
    with open_bytes(source.path) as stream:
        yield from _without_header(_blocks(stream, size), source)


def standard_input(
    schema: Schema, stop: threading.Event, *, size: int = BLOCK_BYTES
) -> tuple[Source, Iterator[TextBlock]]:
    """Return how the text on standard input is written, and its rows, without a header.

    Parameters
    ----------
    stop:
        Ends the text where it is, when it is set.

    Raises
    ------
    InputError
        It cannot be read, or has not the columns that are needed.
    """
    with ExitStack() as context:
        context.enter_context(reading(STANDARD_INPUT))
        if sys.stdin is None:  # the number of its file may be another file's by now
            raise InputError("it is closed", file=STANDARD_INPUT)
        raw = _StandardInput(stop)
        start = raw.start()
        if start == PARQUET_MAGIC:
            raise InputError("parquet cannot be read from a pipe: write it to a file", file=STANDARD_INPUT)
        stream = io.BufferedReader(raw, buffer_size=1 << 16)
        blocks = _blocks(text_of(stream, start), size)
        first = next(blocks, None)
        text = first.text() if first else b""
        lines = [line.removesuffix(b"\r") for line in text.split(b"\n", FIRST_LINES)[:FIRST_LINES]]
        if text.count(b"\n") < FIRST_LINES:
            lines.pop()  # what follows the last line end
        decoded = (line.decode("utf-8", "replace") for line in lines)
        source = describe_text(decoded, text[:8], STANDARD_INPUT, schema, label="optional")
    return source, _without_header(_all_blocks(first, blocks), source)


def _all_blocks(first: TextBlock | None, others: Iterator[TextBlock]) -> Iterator[TextBlock]:
    with reading(STANDARD_INPUT):
        if first is not None:
            yield first
            yield from others


def _without_header(blocks: Iterator[TextBlock], source: Source) -> Iterator[TextBlock]:
    first = next(blocks, None)
    if first is None:
        return
    start, line = first.start, first.first_line
    text = first.text()
    place = len(BYTE_ORDER_MARK) if text.startswith(BYTE_ORDER_MARK) else 0
    while source.header_line is not None and line <= source.header_line and place < len(text):
        place = text.index(b"\n", place) + 1
        line += 1
    yield replace(first, start=start + place, first_line=line)
    yield from blocks


def _blocks(stream: IO[bytes], size: int) -> Iterator[TextBlock]:
    """Cut a text at line ends; a longer line makes a longer block."""
    rest = b""
    line = 1
    while True:
        memory = bytearray(max(size, 2 * len(rest)) + 1 + PADDING)
        memory[: len(rest)] = rest
        filled, room = len(rest), len(memory) - 1 - PADDING
        with memoryview(memory) as view:
            while filled < room and (read := _read_into(stream, view[filled:room])):
                filled += read
        at_end = filled < room
        if at_end and filled and memory[filled - 1] != ord("\n"):
            memory[filled] = ord("\n")
            filled += 1
        stop = memory.rfind(b"\n", 0, filled) + 1
        rest = bytes(memory[stop:filled])
        if stop:
            yield TextBlock(np.frombuffer(memory, np.uint8), 0, stop, line)
            line += memory.count(b"\n", 0, stop)
        if at_end:
            return


def _read_into(stream: IO[bytes], target: memoryview) -> int:
    return stream.readinto(target)  # type: ignore[attr-defined,no-any-return]
