"""Which rows train, which validate and which test."""

from __future__ import annotations

from fractions import Fraction

import polars as pl

from stampede import ConfigError, InputError
from stampede.pipeline.dataset import SPLITS, Split, SplitRule
from stampede.pipeline.rows import HOUR
from stampede.pipeline.spool import ROW

SPLIT = ".split"

HOURS_PER_UNIT = {"hour": 1, "day": 24}

# splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014)
GOLDEN_GAMMA = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB
UINT64 = 1 << 64


def split_code(split: Split) -> int:
    """Return the number that stands for a split in a column."""
    return SPLITS.index(split)


def split_of_code(code: int) -> Split:
    """Return the split that a number stands for."""
    return SPLITS[code]


def check_fractions(rule: SplitRule) -> None:
    """Raise unless the fractions are such that a row can be left to train.

    Raises
    ------
    ConfigError
        Names the fraction.
    """
    for split, fraction in (("valid", rule.valid_fraction), ("test", rule.test_fraction)):
        if not 0 <= fraction < 1:
            raise ConfigError(f"--{split}-fraction {fraction}: it must be 0 or more and below 1")
    if rule.valid_fraction + rule.test_fraction >= 1:
        raise ConfigError(
            f"--valid-fraction {rule.valid_fraction} and --test-fraction {rule.test_fraction} "
            "leave no row to train"
        )


def split_while_reading(rule: SplitRule) -> list[pl.Expr]:
    """Return the column :data:`SPLIT` (Int8 code) of a row where its number decides it, else nothing."""
    if rule.rule != "random":
        return []
    uniform = uniform_of_row(pl.col(ROW), seed=rule.seed)
    return [_choose(uniform < rule.test_fraction + rule.valid_fraction, uniform < rule.test_fraction)]


def split_after_reading(rows: pl.LazyFrame, rule: SplitRule) -> list[pl.Expr]:
    """Return the column :data:`SPLIT` (Int8 code) of a row where all of them decide it, else nothing.

    Parameters
    ----------
    rows:
        All rows; their number, and for a split by time their hours, are looked up here.

    Raises
    ------
    ConfigError
        There is no time to split by.
    InputError
        The last units of time leave nothing to train.
    """
    if rule.rule == "random":
        return []
    if rule.rule == "sequential":
        total = rows.select(pl.len()).collect().item()
        test = total - _floor_of(rule.test_fraction, total)
        valid = test - _floor_of(rule.valid_fraction, total)
        return [_choose(pl.col(ROW) >= valid, pl.col(ROW) >= test)]
    return [_split_by_time(rows, rule)]


def uniform_of_row(row: pl.Expr, *, seed: int) -> pl.Expr:
    """Float64 in [0, 1] of a row number (UInt64) and a seed: splitmix64, never an engine's hash."""
    x = (row + 1) * _uint64(GOLDEN_GAMMA) + _uint64(seed * MIX_1)
    x = (x ^ (x // (1 << 30))) * _uint64(MIX_1)
    x = (x ^ (x // (1 << 27))) * _uint64(MIX_2)
    x = x ^ (x // (1 << 31))
    return x.cast(pl.Float64) / float(UINT64)


def _uint64(value: int) -> pl.Expr:
    return pl.lit(value % UINT64, pl.UInt64)


def _floor_of(fraction: float, total: int) -> int:
    """Floor of a decimal fraction of a number: 0.29 of 100 is 29, although 0.29 * 100 < 29 in float64."""
    return int(Fraction(str(fraction)) * total)


def _choose(not_train: pl.Expr, test: pl.Expr) -> pl.Expr:
    split = pl.when(test).then(_code("test")).when(not_train).then(_code("valid")).otherwise(_code("train"))
    return split.alias(SPLIT)


def _code(split: Split) -> pl.Expr:
    return pl.lit(split_code(split), pl.Int8)


def _split_by_time(rows: pl.LazyFrame, rule: SplitRule) -> pl.Expr:
    """Test is the last whole units of time that hold at least its fraction; valid the ones before."""
    if HOUR not in rows.collect_schema():
        raise ConfigError("--split time needs a log with a time column; name it in the schema as 'time'")
    unit = pl.col(HOUR) // HOURS_PER_UNIT[rule.time_unit]
    sizes = rows.group_by(unit.alias("unit")).len().sort("unit", descending=True).collect(engine="streaming")
    total = int(sizes["len"].sum())
    units = list(zip(sizes["unit"].to_list(), sizes["len"].to_list(), strict=True))
    first_test = first_valid = units[0][0] + 1 if units else 0
    for split, fraction in (("test", rule.test_fraction), ("valid", rule.valid_fraction)):
        held = 0
        while held < Fraction(str(fraction)) * total:
            if len(units) == 1:
                raise InputError(
                    f"--{split}-fraction {fraction} of {total} rows leaves no {rule.time_unit} to train: "
                    f"the rows span {sizes.height}; take a smaller fraction or another split"
                )
            first_valid, rows_of_unit = units.pop(0)
            held += rows_of_unit
        if split == "test":
            first_test = first_valid
    return _choose(unit >= first_valid, unit >= first_test)


def check_splits(counts: dict[Split, int], rule: SplitRule) -> None:
    """Raise where a split that was asked for came out empty.

    Raises
    ------
    InputError
        Names the fraction that gave no row.
    """
    total = sum(counts.values())
    requested: tuple[tuple[Split, float], ...] = (
        ("test", rule.test_fraction),
        ("valid", rule.valid_fraction),
    )
    for split, fraction in requested:
        if fraction > 0 and counts.get(split, 0) == 0:
            raise InputError(
                f"--{split}-fraction {fraction} of {total} rows gives no {split} row: "
                "take more rows or a larger fraction, or 0 to do without"
            )
    if counts.get("train", 0) == 0:
        raise InputError(f"no row of {total} is left to train: take more rows or smaller fractions")
