"""Blocks of rows, drawn side by side, written in order."""

from __future__ import annotations

import gzip
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import IO, Literal

import numpy as np
from numpy.typing import NDArray

from stampede import ConfigError, StampedeError
from stampede.pipeline.synth.draw import QuantileTable, key_of, mix32, mix64, quantile_table
from stampede.pipeline.synth.drift import (
    Day,
    click_rate_of,
    drawn_elsewhere,
    generations,
    intercept_shift,
    value_numbers,
)
from stampede.pipeline.synth.profile import Field, PresetName, load_profile
from stampede.pipeline.synth.signal import FieldSignal, entries_of, field_signal, interaction
from stampede.pipeline.synth.text import Cells, hex_cells, integer_cells, lines, unsigned_cells

BLOCK_ROWS = 16_384
ENDINGS = (".txt", ".tsv", ".csv", ".gz")
_GZIP_LEVEL = 3
FIRST_DAY = Day()
CALIBRATION_ROWS, CALIBRATION_SEED = 1 << 14, "calibration"  # rows that no file has
_AVAZU_HOURS = tuple(f"1410{day}{hour:02d}" for day in range(21, 31) for hour in range(24))


@dataclass(frozen=True)
class SynthResult:
    """What was written: rows (a header is none), size of the file in bytes, wall time in seconds."""

    rows: int
    bytes: int
    seconds: float


def synthesise(
    preset: Literal["criteo", "avazu"],
    out: Path,
    *,
    rows: int,
    seed: int = 0,
    day: Day = FIRST_DAY,
    progress: Callable[[int], None] | None = None,
    block_rows: int = BLOCK_ROWS,
) -> SynthResult:
    """Write a click log of the preset's shape with a planted signal.

    Args:
        preset: ``criteo`` (tab-separated, no header) or ``avazu`` (comma-separated, Kaggle's header).
        out: the file to write, replaced if it is there: .txt, .tsv or .csv, and .gz for gzip.
        rows: number of rows, at least 1.
        seed: which rows are drawn; the values and their effects are those of the preset.
        day: which day of a Criteo log it is, each of ``rows`` rows. Without drift the days are, one after the
            other, the file of all their rows; see :mod:`stampede.pipeline.synth.drift`.
        progress: called with the rows written since the last call.
        block_rows: rows that are held at once by a thread; the file does not depend on it.

    Raises:
        ConfigError: options or a place to write to that make no sense; nothing is written.
        StampedeError: the file cannot be written; nothing is left of it.
    """
    _check(out, rows=rows, block_rows=block_rows)
    if preset != "criteo" and day != FIRST_DAY:
        raise ConfigError(f"synth {preset}: days that drift are of criteo")
    world = _world(preset, day)
    started = time.perf_counter()
    with _replacing(out) as sink:
        sink.write(world.header)
        for count, block in _blocks(world, rows=rows, seed=seed, block_rows=block_rows):
            sink.write(block)
            if progress is not None:
                progress(count)
    return SynthResult(rows=rows, bytes=out.stat().st_size, seconds=time.perf_counter() - started)


def true_logits(preset: PresetName, *, rows: int, seed: int = 0, day: Day = FIRST_DAY) -> NDArray[np.float64]:
    """Return the logits that the labels of ``synthesise`` with these arguments were drawn from. [rows].

    No model can rank better in expectation: their AUC against the labels is the Bayes AUC.
    """
    world = _world(preset, day)
    first = (day.number - 1) * rows
    starts = range(first, first + rows, BLOCK_ROWS)
    return np.concatenate(
        [world.draw(start, min(start + BLOCK_ROWS, first + rows), seed=seed).logits for start in starts]
    )


@dataclass(frozen=True)
class _Rows:
    """Drawn rows: field name -> numbers [n] (uint64) and -> which are empty [n]; logits [n]; labels [n].

    The number of an integer is itself, from the field's ``base`` on; that of an id names the value.
    """

    numbers: dict[str, NDArray[np.uint64]]
    empty: dict[str, NDArray[np.bool_]]
    logits: NDArray[np.float64]
    labels: NDArray[np.bool_]


class _World:
    """A preset on a day with its tables built: draws rows by number and writes them as text."""

    def __init__(self, preset: PresetName, day: Day) -> None:
        self.profile = load_profile(preset)
        self.day = day
        self.header = b""
        if preset == "avazu":
            self.header = (
                ",".join(["id", "click", "hour", *(f.name for f in self.profile.fields)]).encode() + b"\n"
            )
        self.tables = _tables(preset)
        self.signals: dict[str, FieldSignal] = {
            f.name: field_signal(preset, f, self.tables[f.name], day) for f in self.profile.fields
        }
        self.id_keys = {f.name: key_of(preset, f.name, "id") for f in self.profile.fields}
        self.texts = {f.name: _texts(f, self.id_keys[f.name]) for f in self.profile.fields if f.values}
        self.scale, self.shift = 1.0, 0.0  # of the logits; on day 1 they are as the preset has them
        if day.age:
            first, now = (w.draw(0, CALIBRATION_ROWS, seed=CALIBRATION_SEED) for w in (_world(preset), self))
            self.scale = float(first.logits.std() / now.logits.std())
            click_rate = click_rate_of(preset, self.profile.click_rate, day)
            self.shift = intercept_shift(self.scale * now.logits, click_rate)
        self.hours = np.array([hour.encode() for hour in _AVAZU_HOURS], dtype="S8").view(np.uint64)

    def draw(self, start: int, stop: int, *, seed: int | str) -> _Rows:
        """Draw the rows numbered from ``start`` up to ``stop``."""
        profile, day = self.profile, self.day
        row = np.arange(start, stop, dtype=np.uint64)
        draws = self._draws(row, seed=seed)
        numbers: dict[str, NDArray[np.uint64]] = {}
        empty: dict[str, NDArray[np.bool_]] = {}
        entries: dict[str, NDArray[np.intp]] = {}
        logits = np.full(len(row), profile.intercept)
        for field in profile.fields:
            name = field.name
            own = ~draws[field.draw] if field.reverse else draws[field.draw]
            numbers[name] = self.tables[name].look_up(own)
            if field.null:
                # Bits 32 to 47, which look_up does not use.
                bits = (draws[field.null_with] >> np.uint64(32)) & np.uint64(0xFFFF)
                empty[name] = bits < np.uint64(round(field.null * 65536))
            generation = None
            if day.age and not field.is_integer:
                generation = generations(profile.name, field, numbers[name], day)
            entries[name] = entries_of(field, numbers[name], empty.get(name), generation)
            if generation is not None:
                numbers[name] = value_numbers(numbers[name], generation)
            logits += self.signals[name].effect[entries[name]]
        for each in profile.interactions:
            logits += interaction(
                each.strength, [self.signals[name].factors[entries[name]] for name in each.fields]
            )
        if day.age:
            logits = self.scale * logits + self.shift
        chance = (mix64(row, key_of(profile.name, "label", seed)) >> np.uint64(11)) * 2.0**-53
        labels = chance * (1.0 + np.exp(-logits)) < 1.0
        return _Rows(numbers=numbers, empty=empty, logits=logits, labels=labels)

    def _draws(self, row: NDArray[np.uint64], *, seed: int | str) -> dict[str, NDArray[np.uint64]]:
        """Return 64 random bits of each row for each draw: where values lie, and which are empty."""
        profile, day = self.profile, self.day
        draws: dict[str, NDArray[np.uint64]] = {}
        for name in dict.fromkeys(name for f in profile.fields for name in (f.draw, f.null_with)):
            draws[name] = mix64(row, key_of(profile.name, name, seed))
        if not day.age:
            return draws
        for field in profile.fields:
            if field.is_integer or field.name not in draws:
                continue
            ranks = self.tables[field.name].look_up(draws[field.name])
            values = value_numbers(ranks, generations(profile.name, field, ranks, day))
            bits = mix64(row, key_of(profile.name, field.name, "popularity", seed))
            elsewhere = drawn_elsewhere(profile.name, field, values, bits, day)
            again = mix64(row, key_of(profile.name, field.name, "again", seed))
            draws[field.name] = np.where(elsewhere, again, draws[field.name])
        return draws

    def text(self, start: int, stop: int, *, rows: int, seed: int) -> bytes:
        """Write the rows numbered from ``start`` up to ``stop`` of a file of ``rows`` rows."""
        drawn = self.draw(start, stop, seed=seed)
        columns: list[Cells] = [[drawn.labels.astype(np.uint8) + np.uint8(ord("0"))]]
        if self.profile.name == "avazu":
            row = np.arange(start, stop, dtype=np.uint64)
            ids = mix64(row, key_of("avazu", "row", seed))
            hour = row * np.uint64(len(self.hours)) // np.uint64(rows)
            columns = [unsigned_cells(ids), *columns, [self.hours[hour]]]
        columns += [self._cells(field, drawn) for field in self.profile.fields]
        return lines(columns, separator="," if self.profile.name == "avazu" else "\t")

    def _cells(self, field: Field, drawn: _Rows) -> Cells:
        numbers, empty = drawn.numbers[field.name], drawn.empty.get(field.name)
        if field.base is not None:
            return integer_cells(
                numbers.view(np.int64) + field.base, empty, limit=field.universe, signed=field.base < 0
            )
        if field.values:
            return [self.texts[field.name][numbers]]
        return hex_cells(mix32(numbers.astype(np.uint32), self.id_keys[field.name]), empty)


@lru_cache(maxsize=4)
def _world(preset: PresetName, day: Day = FIRST_DAY) -> _World:
    return _World(preset, day)


@cache
def _tables(preset: PresetName) -> dict[str, QuantileTable]:
    return {field.name: quantile_table(field) for field in load_profile(preset).fields}


def _texts(field: Field, key: np.uint64) -> NDArray[np.uint64]:
    """Return the text of each rank of a field with named values, as 8 bytes padded with NUL. [universe]."""
    texts = list(field.values)
    if field.range is not None:
        free = [number for number in range(field.range[0], field.range[1] + 1) if str(number) not in texts]
        order = np.argsort(mix64(np.array(free, dtype=np.uint64), key), kind="stable")
        texts += [str(free[i]) for i in order]
    return np.array([text.encode() for text in texts[: field.universe]], dtype="S8").view(np.uint64)


def _blocks(world: _World, *, rows: int, seed: int, block_rows: int) -> Iterator[tuple[int, bytes]]:
    """Yield (rows, text) in order, with no more blocks in memory than threads plus two."""
    threads = max(1, min(os.cpu_count() or 1, 8))
    first = (world.day.number - 1) * rows
    waiting: deque[tuple[int, Future[bytes]]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for start in range(first, first + rows, block_rows):
                stop = min(start + block_rows, first + rows)
                waiting.append((stop - start, pool.submit(world.text, start, stop, rows=rows, seed=seed)))
                if len(waiting) > threads + 1:
                    count, future = waiting.popleft()
                    yield count, future.result()
            while waiting:
                count, future = waiting.popleft()
                yield count, future.result()
        finally:
            for _, future in waiting:
                future.cancel()


def _check(out: Path, *, rows: int, block_rows: int) -> None:
    if rows < 1:
        raise ConfigError(f"--rows {rows}: at least 1 row is needed")
    if block_rows < 1:
        raise ConfigError(f"block_rows {block_rows}: at least 1 row is needed")
    if out.suffix.lower() not in ENDINGS:
        raise ConfigError(f"--out {out}: the name must end in one of {' '.join(ENDINGS)}")
    if out.is_dir():
        raise ConfigError(f"--out {out} is a folder: name a file in it")
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out}: the folder {out.parent} does not exist; create it first")


@contextmanager
def _replacing(out: Path) -> Iterator[IO[bytes] | gzip.GzipFile]:
    """Open a file beside ``out`` that takes its place when all went well, and is removed otherwise."""
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            if out.suffix.lower() == ".gz":
                # No name and no time in the header: the same rows are the same bytes.
                with gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) as packed:
                    yield packed
            else:
                yield file
        temporary.replace(out)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StampedeError(f"cannot write {out}: {error.strerror or error}") from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
