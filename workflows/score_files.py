"""Scores -> a file that appears whole or not at all, or standard output as they come."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

from stampede import StampedeError
from stampede.workflows.files import working_folder

Scores = npt.NDArray[np.float64]

ROWS_PER_PIECE = 1 << 22


class ScoreWriter(Protocol):
    """Takes scores in order."""

    def write(self, scores: Scores) -> None:
        """Take some more."""


class ClosedPipeError(Exception):
    """Whoever read standard output has enough."""


@contextmanager
def score_file(out: Path) -> Iterator[ScoreWriter]:
    """Give a writer of a .csv or .parquet file; the file is put in place when the block ends.

    Raises
    ------
    StampedeError
        The place cannot be written, or its disk is full; nothing is there then.
    """
    with working_folder(out) as folder:
        result = folder / f"scores{out.suffix}"
        if out.suffix == ".csv":
            with result.open("wb") as file:
                writer = _CsvFile(file.write)
                yield writer
                writer.end()
        else:
            pieces = _ParquetFile(folder)
            yield pieces
            pieces.end(result)
        result.replace(out)


@contextmanager
def standard_output() -> Iterator[ScoreWriter]:
    """Give a writer of CSV to standard output.

    Raises
    ------
    ClosedPipeError
        From the writer: nobody reads on.
    StampedeError
        It cannot be written to.
    """
    if sys.stdout is None:
        raise StampedeError("cannot write to standard output: it is closed")

    def write(text: bytes) -> None:
        try:
            sys.stdout.buffer.write(text)
            sys.stdout.buffer.flush()
        except BrokenPipeError as error:
            _give_up_standard_output()
            raise ClosedPipeError from error
        except OSError as error:
            _give_up_standard_output()
            raise StampedeError(f"cannot write to standard output: {error.strerror or error}") from error

    writer = _CsvFile(write)
    yield writer
    writer.end()


def _give_up_standard_output() -> None:
    """Lead what is still in its buffer, and is tried again at the end of the process, to nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


class _CsvFile:
    """Writes lines of text, the name of the column first."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._begun = False

    def write(self, scores: Scores) -> None:
        """Write some scores."""
        text = pl.DataFrame({"score": scores}).write_csv(include_header=not self._begun)
        self._begun = True
        self._write(text.encode())

    def end(self) -> None:
        """Write the name where there was no score."""
        if not self._begun:
            self.write(np.empty(0))


class _ParquetFile:
    """Writes scores to pieces in a folder as they come, and puts these together in the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pieces: list[Path] = []
        self._scores: list[Scores] = []
        self._rows = 0

    def write(self, scores: Scores) -> None:
        """Take some scores."""
        self._scores.append(scores)
        self._rows += len(scores)
        if self._rows >= ROWS_PER_PIECE:
            self._pieces.append(self._folder / f"piece-{len(self._pieces):06}.parquet")
            self._flush(self._pieces[-1])

    def end(self, result: Path) -> None:
        """Write the file that holds all of them."""
        if not self._pieces:
            self._flush(result)
            return
        if self._rows:
            self._pieces.append(self._folder / "piece-last.parquet")
            self._flush(self._pieces[-1])
        pl.scan_parquet(self._pieces, glob=False).sink_parquet(result)

    def _flush(self, file: Path) -> None:
        scores = np.concatenate([np.empty(0), *self._scores])
        pl.DataFrame({"score": scores}).write_parquet(file)
        self._scores, self._rows = [], 0
