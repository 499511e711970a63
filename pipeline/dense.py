"""Dense features: statistics that do not depend on the order of rows, and the transform to model inputs.

Null counts as 0 in the statistics and the transform. Every output is a finite float32.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import polars as pl

from stampede.pipeline.dataset import DenseInfo, DenseMode

FLOAT32_MAX = float(np.finfo(np.float32).max)

# Below this, 1 / spread is infinite. Numbers are multiplied with it: polars does so on a CPU also where it is
# told to divide, and divides on a GPU.
SMALLEST_SPREAD = sys.float_info.min

# A sum of quantised values is exact in any order: 53 bits of the value, in halves of 27 and 26 bits, whose
# int64 sums cannot overflow below 2^36 rows. A float64 has 53 bits: the mean of a constant column is exact.
VALUE_BITS = 53
HALF = 1 << 26
SMALLEST_UNIT_EXPONENT = -1022
LARGEST_INTEGER = float(1 << 62)

Collect = Callable[[pl.LazyFrame], pl.DataFrame]


def collect_streaming(plan: pl.LazyFrame) -> pl.DataFrame:
    """Run a plan on Polars' streaming engine."""
    return plan.collect(engine="streaming")


def fit_dense(
    rows: pl.LazyFrame, names: Sequence[str], *, mode: DenseMode, collect: Collect = collect_streaming
) -> tuple[DenseInfo, ...]:
    """Compute the statistics of dense columns (Float64, null counts as 0).

    Minimum and maximum always; mean and population deviation for the mode ``standard`` alone. The result does
    not depend on threads, files or the engine: sums are taken over values quantised to 2^-53 of the largest,
    which is exact for integers below 2^53.

    Parameters
    ----------
    collect:
        How a plan is run.
    """
    if not names:
        return ()
    columns = {name: pl.col(name).fill_null(0.0) for name in names}
    plan = rows.select(
        *[pl.col(name).null_count().alias(f"{name}.null") for name in names],
        *[value.min().alias(f"{name}.min") for name, value in columns.items()],
        *[value.max().alias(f"{name}.max") for name, value in columns.items()],
    )
    bounds = collect(plan).row(0, named=True)
    # Which of -0.0 and 0.0 is the smaller depends on their order: adding 0.0 makes both the latter.
    lowest = {name: float(bounds[f"{name}.min"]) + 0.0 for name in names}
    highest = {name: float(bounds[f"{name}.max"]) + 0.0 for name in names}
    infos = [
        DenseInfo(name=n, null=bounds[f"{n}.null"], minimum=lowest[n], maximum=highest[n]) for n in names
    ]
    if mode != DenseMode.STANDARD:
        return tuple(infos)

    largest = {name: max(abs(lowest[name]), abs(highest[name])) for name in names}
    means = {name: float(mean) for name, mean in _exact_means(rows, columns, largest, collect).items()}
    offsets = {name: value - means[name] for name, value in columns.items()}
    squares = {name: offset * offset for name, offset in offsets.items()}  # a GPU's pow may round otherwise
    widest = {n: max((lowest[n] - means[n]) ** 2, (highest[n] - means[n]) ** 2) for n in names}
    variances = _exact_means(rows, squares, widest, collect)
    return tuple(
        info.model_copy(update={"mean": means[info.name], "std": math.sqrt(variances[info.name])})
        for info in infos
    )


def _exact_means(
    rows: pl.LazyFrame, values: dict[str, pl.Expr], largest: dict[str, float], collect: Collect
) -> dict[str, Fraction]:
    """Mean of each expression (Float64, at most ``largest`` in magnitude), the same in any order of rows."""
    units = {
        name: 2.0 ** max(math.frexp(bound)[1] - VALUE_BITS, SMALLEST_UNIT_EXPONENT)
        for name, bound in largest.items()
    }
    sums: list[pl.Expr] = [pl.len().alias(".rows")]
    for name, value in values.items():
        quantised = (value / units[name]).round()
        high = (quantised / HALF).floor()
        low = quantised - high * HALF
        sums += [
            high.cast(pl.Int64).sum().alias(f"{name}.high"),
            low.cast(pl.Int64).sum().alias(f"{name}.low"),
        ]
    row = collect(rows.select(sums)).row(0, named=True)
    return {
        name: (row[f"{name}.high"] * HALF + row[f"{name}.low"]) * Fraction(units[name]) / row[".rows"]
        for name in values
    }


def transform_dense(info: DenseInfo, *, mode: DenseMode) -> pl.Expr:
    """Return the float32 model input of a dense column (Float64, null where empty).

    ``minmax`` scales the fitted range to [0, 1] and clips to it; ``standard`` subtracts the mean and divides
    by the population deviation; ``log`` is sign(x) log(1 + abs(x)); ``none`` keeps the value. A column
    without spread gives 0 under the first two.
    """
    value = pl.col(info.name).fill_null(0.0)
    if mode == DenseMode.MINMAX:
        spread = info.maximum - info.minimum
        scaled = (
            ((value - info.minimum) * (1 / spread)).clip(0.0, 1.0)
            if spread >= SMALLEST_SPREAD
            else value * 0.0
        )
    elif mode == DenseMode.STANDARD:
        assert info.mean is not None
        assert info.std is not None
        scaled = (value - info.mean) * (1 / info.std) if info.std >= SMALLEST_SPREAD else value * 0.0
    elif mode == DenseMode.LOG:
        scaled = value.sign() * _log1p(value.abs())
    else:
        scaled = value
    finite = scaled.clip(-FLOAT32_MAX, FLOAT32_MAX).cast(pl.Float32)
    zero = pl.lit(0.0, pl.Float32)
    return pl.when(finite == 0.0).then(zero).otherwise(finite).alias(info.name)  # no negative zero


def _log1p(value: pl.Expr) -> pl.Expr:
    """Return ln(1 + x) of x >= 0 (Float64) to the last places, by Kahan's formula (HP-15C handbook, 1982).

    cudf-polars would compute ``Expr.log1p`` as the logarithm of a rounded sum: 0 for small x.
    """
    above = value + 1.0
    return pl.when(above == 1.0).then(value).otherwise(above.log() * (value / (above - 1.0)))


def null_flag(name: str) -> pl.Expr:
    """Return 1 where a dense column is empty, else 0, as float32 ``NAME_null``."""
    return pl.col(name).is_null().cast(pl.Float32).alias(f"{name}_null")


def log_bucket(name: str) -> pl.Expr:
    """Return the category (String) of a dense column: floor(ln(x)^2) above 2, else "s" and the integer.

    The buckets of the winners of the Criteo Kaggle challenge (Juan, Zhuang, Chin and Lin, 2014). Below -2^62
    all values share a bucket.
    """
    value = pl.col(name)
    logarithm = value.log()
    large = (logarithm * logarithm).floor().cast(pl.Int64, strict=False).cast(pl.String)
    small = pl.lit("s") + value.clip(-LARGEST_INTEGER, 2.0).cast(pl.Int64).cast(pl.String)
    return pl.when(value > 2).then(large).otherwise(small)
