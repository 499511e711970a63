"""A naive preparation in plain Python, written from the contract and from no other code.

It holds everything in dicts and lists and computes with fractions: slow, and easy to agree with.
"""

from __future__ import annotations

import calendar
import gzip
import hashlib
import math
import re
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Literal

NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
LABELS = {"1": 1, "1.0": 1, "true": 1, "0": 0, "0.0": 0, "-1": 0, "-1.0": 0, "false": 0}
UINT64 = 1 << 64

Value = int | float | None
Row = dict[str, Value]


@dataclass(frozen=True)
class Log:
    """How the log is written: the same words as a schema, but nothing is found out from the files."""

    label: str
    dense: tuple[str, ...]
    categorical: tuple[str, ...]
    columns: tuple[str, ...]
    time: str | None = None
    separator: str = "\t"
    header: bool = False
    null_values: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rules:
    """The options of ``prepare``, by the names of its flags."""

    split: Literal["random", "sequential", "time"] = "random"
    valid_fraction: str = "0.1"
    test_fraction: str = "0.1"
    seed: int = 0
    time_unit: Literal["hour", "day"] = "hour"
    min_count: int = 2
    max_size: int | None = None
    hash_buckets: int = 0
    dense: Literal["log", "minmax", "standard", "none", "log-bucket"] = "log"
    dense_null_flag: bool = False
    fit_on: Literal["train", "all"] = "train"
    counts: bool = True


@dataclass
class Prepared:
    """What a dataset must hold."""

    columns: list[str]
    splits: dict[str, list[Row]]
    vocabularies: dict[str, list[tuple[int, str | None, int]]]
    null: dict[str, int]
    rare: dict[str, int]
    rejected: list[tuple[str, int, str | None]] = field(default_factory=list)


@dataclass
class Click:
    """A row of the log: its label, numbers, texts and hour."""

    label: int
    dense: dict[str, float | None]
    values: dict[str, str | None]
    hour: int | None = None


class BadRow(Exception):
    """A row that cannot be used, and the column at fault."""

    def __init__(self, column: str | None) -> None:
        super().__init__(column)
        self.column = column


def prepare(files: Sequence[Path], log: Log, rules: Rules) -> Prepared:
    """Prepare files whose bad rows are skipped."""
    clicks: list[Click] = []
    rejected: list[tuple[str, int, str | None]] = []
    for file in files:
        for number, line, names in data_lines(file, log):
            try:
                clicks.append(parse(line, names, log))
            except BadRow as bad:
                rejected.append((str(file), number, bad.column))
    if rules.dense == "log-bucket":
        for click in clicks:
            click.values = {name: log_bucket(x) for name, x in click.dense.items()} | click.values
    split_of = split_rows(clicks, rules)
    fitted = [
        c for c, split in zip(clicks, split_of, strict=True) if rules.fit_on == "all" or split == "train"
    ]
    numbers = (
        {} if rules.dense == "log-bucket" else {name: Scaler(fitted, name, rules.dense) for name in log.dense}
    )
    fields = list(clicks[0].values)
    books = {name: Book([click.values[name] for click in fitted], rules) for name in fields}

    splits: dict[str, list[Row]] = {}
    for click, split in zip(clicks, split_of, strict=True):
        row: Row = {"label": click.label}
        row |= {name: scaler(click.dense[name]) for name, scaler in numbers.items()}
        if rules.dense_null_flag:
            row |= {f"{name}_null": float(click.dense[name] is None) for name in numbers}
        for name, book in books.items():
            row[name] = book.id_of(click.values[name])
            if rules.counts:
                row[f"{name}_count"] = book.counts[book.id_of(click.values[name])]
        splits.setdefault(split, []).append(row)
    return Prepared(
        columns=list(splits["train"][0]),
        splits=splits,
        vocabularies={name: book.rows() for name, book in books.items()},
        null={name: sum(row[name] == 1 for row in splits["train"]) for name in fields},
        rare={name: sum(row[name] == 2 for row in splits["train"]) for name in fields},
        rejected=rejected,
    )


def data_lines(file: Path, log: Log) -> Iterator[tuple[int, str, Sequence[str]]]:
    """Yield (line number, text, names of the columns) of the lines that are neither blank nor the header."""
    content = file.read_bytes()
    if content.startswith(b"\x1f\x8b"):
        content = gzip.decompress(content)
    names: Sequence[str] | None = None if log.header else log.columns
    for number, raw in enumerate(content.split(b"\n"), 1):
        line = raw.removesuffix(b"\r").decode()
        if number == 1:
            line = line.removeprefix("\ufeff")
        if not line.strip(" "):
            continue
        if names is None:
            names = [name.strip() for name in fields_of(line, log)]
            continue
        yield number, line, names


def fields_of(line: str, log: Log) -> list[str]:
    """Split a line; quotes have a meaning unless the separator is a tab."""
    if log.separator == "\t" or '"' not in line:
        return line.split(log.separator)
    fields: list[str] = []
    rest = line + log.separator
    while rest:
        if not rest.startswith('"'):
            value, _, rest = rest.partition(log.separator)
            fields.append(value)
            continue
        value, closed, at = "", False, 1
        while at < len(rest) and not closed:
            if rest[at : at + 2] == '""':
                value, at = value + '"', at + 2
            elif rest[at] == '"':
                closed, at = True, at + 1
            else:
                value, at = value + rest[at], at + 1
        if not closed or rest[at] != log.separator:
            raise BadRow(None)
        fields.append(value)
        rest = rest[at + 1 :]
    return fields


def parse(line: str, names: Sequence[str], log: Log) -> Click:
    """Read a line; raise for the first thing that is wrong with it."""
    fields = fields_of(line, log)
    if len(fields) != len(names):
        raise BadRow(None)
    text = dict(zip(names, fields, strict=True))
    label = LABELS.get(text[log.label].strip(" ").lower())
    if label is None:
        raise BadRow(log.label)
    empty = {"", *log.null_values}
    dense: dict[str, float | None] = {}
    for name in log.dense:
        word = text[name].strip(" ")
        dense[name] = None if word in empty else finite_float32(word, name)
    values: dict[str, str | None] = {n: None if text[n] in empty else text[n] for n in log.categorical}
    if log.time is None:
        return Click(label, dense, values)
    hour = hour_of(text[log.time].strip(" "), log.time)
    values["hour_of_day"] = str(hour % 24)
    values["weekday"] = str(time.gmtime(3600 * hour).tm_wday + 1)
    return Click(label, dense, values, hour)


def finite_float32(word: str, name: str) -> float:
    """Read a decimal number that float32 can hold."""
    if not NUMBER.fullmatch(word):
        raise BadRow(name)
    number = float(word)
    try:
        float32(number)
    except OverflowError:
        raise BadRow(name) from None
    return number


def float32(number: float) -> float:
    """Round to the nearest float32; OverflowError where there is none."""
    result: float = struct.unpack("f", struct.pack("f", number))[0]
    if math.isinf(result):
        raise OverflowError
    return result


def hour_of(word: str, name: str) -> int:
    """Hours since 1970 of YYMMDDHH, of an ISO date with or without a time, or of Unix seconds."""
    if re.fullmatch(r"[0-9]{9,11}", word):
        return int(word) // 3600
    for pattern in ("%y%m%d%H", "%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%SZ"):
        try:
            return calendar.timegm(time.strptime(word, pattern)) // 3600
        except ValueError:
            continue
    raise BadRow(name)


def log_bucket(number: float | None) -> str | None:
    """Return the category of a number: floor(ln(x)^2) above 2, else "s" and the integer, at least -2^62."""
    if number is None:
        return None
    return str(math.floor(math.log(number) ** 2)) if number > 2 else f"s{max(int(number), -(2**62))}"


def split_rows(clicks: list[Click], rules: Rules) -> list[str]:
    """Return the split of each row."""
    valid, test = Fraction(rules.valid_fraction), Fraction(rules.test_fraction)
    rows = len(clicks)
    if rules.split == "random":
        return [
            "test" if u < test else "valid" if u < test + valid else "train"
            for u in (uniform(row, rules.seed) for row in range(rows))
        ]
    if rules.split == "sequential":
        n_test, n_valid = math.floor(test * rows), math.floor(valid * rows)
        return ["train"] * (rows - n_test - n_valid) + ["valid"] * n_valid + ["test"] * n_test
    hours = {"hour": 1, "day": 24}[rules.time_unit]
    units = [(click.hour or 0) // hours for click in clicks]
    sizes = sorted(Counter(units).items())
    split_of: dict[int, str] = {}
    for split, fraction in (("test", test), ("valid", valid)):
        held = 0
        while held < fraction * rows:
            unit, size = sizes.pop()
            split_of[unit] = split
            held += size
    return [split_of.get(unit, "train") for unit in units]


def uniform(row: int, seed: int) -> Fraction:
    """Splitmix64 of the row number, as a number in [0, 1)."""
    x = ((row + 1) * 0x9E3779B97F4A7C15 + seed * 0xBF58476D1CE4E5B9) % UINT64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % UINT64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % UINT64
    return Fraction(x ^ (x >> 31), UINT64)


class Scaler:
    """A dense feature: statistics of the fitted rows with null as 0, and the transform."""

    def __init__(self, fitted: list[Click], name: str, mode: str) -> None:
        numbers = [click.dense[name] or 0.0 for click in fitted]
        self.mode = mode
        self.low, self.high = min(numbers), max(numbers)
        if mode == "standard":
            exact = [Fraction(number) for number in numbers]
            self.mean = sum(exact, Fraction(0)) / len(exact)
            variance = sum(((x - self.mean) ** 2 for x in exact), Fraction(0)) / len(exact)
            self.deviation = math.sqrt(variance)

        # A spread that is no normal float64 is none.
        spread = self.deviation if mode == "standard" else self.high - self.low
        self.constant = spread < sys.float_info.min

    def __call__(self, number: float | None) -> float:
        x = number or 0.0
        if self.mode == "log":
            x = math.copysign(math.log1p(abs(x)), x)
        elif self.mode in ("minmax", "standard") and self.constant:
            x = 0.0
        elif self.mode == "minmax":
            x = min(max((x - self.low) / (self.high - self.low), 0.0), 1.0)
        elif self.mode == "standard":
            x = float(Fraction(x) - self.mean) / self.deviation
        return float32(x)


class Book:
    """The ids of a field: 0 padding, 1 null, 2 unseen or rare, values by count then bytes, buckets."""

    def __init__(self, fitted: list[str | None], rules: Rules) -> None:
        occurrences = Counter(value for value in fitted if value is not None)
        frequent = [value for value, count in occurrences.items() if count >= rules.min_count]
        frequent.sort(key=lambda value: (-occurrences[value], value.encode()))
        self.values = frequent if rules.max_size is None else frequent[: rules.max_size]
        self.ids = {value: 3 + rank for rank, value in enumerate(self.values)}
        self.buckets = rules.hash_buckets
        self.counts = [0] * (3 + len(self.values) + self.buckets)
        for value in fitted:
            self.counts[self.id_of(value)] += 1

    def id_of(self, value: str | None) -> int:
        if value is None:
            return 1
        if value in self.ids:
            return self.ids[value]
        if not self.buckets:
            return 2
        digest = hashlib.blake2b(value.encode(), digest_size=8).digest()
        return 3 + len(self.values) + int.from_bytes(digest, "little") % self.buckets

    def rows(self) -> list[tuple[int, str | None, int]]:
        values = [None, None, None, *self.values, *[None] * self.buckets]
        return [(i, value, count) for i, (value, count) in enumerate(zip(values, self.counts, strict=True))]
