"""Target encoding: the click rate of a value, of other rows than the one that it is given to.

A training row gets the rate over the training rows of the other folds, all other rows that over all training
rows; so no row sees its own label. Rates are smoothed towards that of the same rows as a whole:
(clicks + S * rate) / (rows + S), with S = 20 (Micci-Barreca, "A preprocessing scheme for high-cardinality
categorical attributes", 2001). They are taken per id: rare values share one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import polars as pl

from stampede.pipeline.dataset import LABEL, read_table
from stampede.pipeline.split import SPLIT, split_code, uniform_of_row
from stampede.pipeline.spool import ROW

SMOOTHING = 20.0

FOLD = ".fold"
FOLD_STREAM = 1 << 32  # added to the seed, so that folds and splits are drawn apart

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Target:
    """What the training rows of each id came to.

    Attributes
    ----------
    rows, clicks:
        int64 [size]: training rows of each id, and how many of them were clicked.
    """

    rows: Integers
    clicks: Integers

    @property
    def rates(self) -> Floats:
        """The smoothed click rate of each id: float32 [size]."""
        return smoothed_rates(self.rows, self.clicks)

    @classmethod
    def load(cls, file: Path) -> Self:
        """Read a file of a dataset or run.

        Raises
        ------
        DatasetError
            It is missing or damaged.
        """
        frame = read_table(file, ("rows", "clicks"))
        return cls(frame["rows"].to_numpy(), frame["clicks"].to_numpy())

    def save(self, file: Path) -> None:
        """Write the file: id int32, rows int64, clicks int64."""
        ids = np.arange(len(self.rows), dtype=np.int32)
        pl.DataFrame({"id": ids, "rows": self.rows, "clicks": self.clicks}).write_parquet(file, mkdir=True)


@dataclass(frozen=True)
class OutOfFold:
    """The rates that the rows of a dataset get.

    Attributes
    ----------
    rates:
        For each field, float32 [(folds + 1) * size]: those without fold 0, without fold 1, …, of all rows.
    sizes:
        Number of ids of each field.
    """

    rates: dict[str, Floats]
    sizes: dict[str, int]

    def index(self, name: str) -> pl.Expr:
        """Int64 index into the rates of a field, of the id in the column ``name`` and the fold of the row."""
        return pl.col(FOLD).cast(pl.Int64) * self.sizes[name] + pl.col(name)


def fold_of_row(seed: int, folds: int) -> pl.Expr:
    """Int32 fold of a row by its number: 0 to ``folds`` - 1 in the training split, else ``folds``."""
    drawn = (uniform_of_row(pl.col(ROW), seed=seed + FOLD_STREAM) * folds).floor().cast(pl.Int32)
    last = pl.lit(folds - 1, pl.Int32)  # a number below 1 may round to it
    inside = pl.when(drawn > last).then(last).otherwise(drawn)
    train = pl.col(SPLIT) == split_code("train")
    return pl.when(train).then(inside).otherwise(pl.lit(folds, pl.Int32)).alias(FOLD)


def clicks_by_fold(train: pl.LazyFrame, name: str) -> pl.LazyFrame:
    """Return the plan that counts rows and clicks of each fold and id of a field."""
    return train.group_by(FOLD, pl.col(name).alias("id")).agg(
        pl.len().cast(pl.Int64).alias("rows"), pl.col(LABEL).cast(pl.Int64).sum().alias("clicks")
    )


def rates_by_fold(counted: pl.DataFrame, *, folds: int, size: int) -> tuple[Target, Floats]:
    """Return the sums over all folds, and the rates of :class:`OutOfFold`.

    Parameters
    ----------
    counted:
        Columns ``.fold``, ``id``, ``rows`` and ``clicks``.
    """
    rows, clicks = (np.zeros((folds, size), np.int64) for _ in range(2))
    place = counted[FOLD].to_numpy(), counted["id"].to_numpy()
    rows[place], clicks[place] = counted["rows"].to_numpy(), counted["clicks"].to_numpy()
    target = Target(rows.sum(axis=0), clicks.sum(axis=0))
    without = [smoothed_rates(target.rows - rows[k], target.clicks - clicks[k]) for k in range(folds)]
    return target, np.concatenate([*without, target.rates])


def smoothed_rates(rows: Integers, clicks: Integers) -> Floats:
    """Float32 click rates, smoothed towards that of all; 0.5 where there is no row at all."""
    total = int(rows.sum())
    prior = int(clicks.sum()) / total if total else 0.5
    return ((clicks + SMOOTHING * prior) / (rows + SMOOTHING)).astype(np.float32)
