"""Raw text files byte by byte, for what a columnar reader does not tell: the line of a fault."""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import zstandard

from stampede import InputError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"

# A quoted field of RFC 4180; a quote inside it is doubled.
QUOTED_FIELD = re.compile('"([^"]*(?:""[^"]*)*)"')


class _ZstdText(io.RawIOBase):
    """The text of a zstd file of any number of frames; raises EOFError where the last one is not whole."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__()
        self._stream = stream
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._compressed = b""
        self._text = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        while not self._text:
            chunk = self._compressed or self._stream.read(io.DEFAULT_BUFFER_SIZE)
            if not chunk:
                if self._frame is not None:
                    raise EOFError("incomplete frame")
                return 0
            frame = self._frame or zstandard.ZstdDecompressor().decompressobj()
            self._text = memoryview(frame.decompress(chunk))
            self._frame, self._compressed = (None, frame.unused_data) if frame.eof else (frame, b"")
        target = memoryview(buffer)
        size = min(len(target), len(self._text))
        target[:size] = self._text[:size]
        self._text = self._text[size:]
        return size


@contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """Open a plain, gzip or zstd file for reading its text, whatever its name.

    Raises
    ------
    InputError
        The file cannot be read, or the archive is damaged or ends too early.
    """
    with reading(path), path.open("rb") as stream:
        magic = stream.read(4)
        stream.seek(0)
        with text_of(stream, magic) as text:
            yield text


def text_of(stream: IO[bytes], magic: bytes) -> IO[bytes]:
    """Return the text of a stream that may be packed with gzip or zstd, as its first four bytes tell."""
    if magic.startswith(GZIP_MAGIC):
        return io.BufferedReader(gzip.GzipFile(fileobj=stream))
    if magic == ZSTD_MAGIC:
        return io.BufferedReader(_ZstdText(stream))
    return stream


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what may go wrong while a text is read into the error that names its file.

    Raises
    ------
    InputError
        It cannot be read, or the archive is damaged or ends too early.
    """
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError) as error:
        raise InputError(
            f"damaged or truncated archive ({error}): fetch or compress it again", file=path
        ) from error
    except OSError as error:
        raise InputError(f"cannot read it: {error.strerror or error}", file=path) from error


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (line number from 1, the line without its line end) of a text file."""
    with open_bytes(path) as stream:
        for number, line in enumerate(stream, 1):
            yield number, line.removesuffix(b"\n").removesuffix(b"\r")


def split_fields(line: str, separator: str) -> list[str] | None:
    """Split a line into its fields; in text that is not tab-separated a field may be quoted (RFC 4180).

    Returns
    -------
    list of str, or None
        None where a quote is not closed, or text follows a closing quote. In a field that does not begin
        with a quote, quotes are ordinary characters.
    """
    if separator == "\t" or '"' not in line:
        return line.split(separator)
    fields = []
    position = 0
    while True:
        if line.startswith('"', position):
            quoted = QUOTED_FIELD.match(line, position)
            if quoted is None:
                return None
            fields.append(quoted[1].replace('""', '"'))
            position = quoted.end()
        else:
            end = line.find(separator, position)
            end = len(line) if end < 0 else end
            fields.append(line[position:end])
            position = end
        if position == len(line):
            return fields
        if line[position] != separator:
            return None
        position += 1


def escape_invalid_utf8(path: Path, target: Path) -> list[int]:
    r"""Copy a text file with every byte that is not UTF-8 written as ``\xNN``.

    Returns
    -------
    list of int
        The numbers, from 1, of the lines that were changed.
    """
    changed: list[int] = []
    with target.open("wb") as copy:
        for number, line in numbered_lines(path):
            text = line
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                changed.append(number)
                text = line.decode("utf-8", "backslashreplace").encode()
            copy.write(text + b"\n")
    return changed
