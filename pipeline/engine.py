"""What engines have in common: where they start, what they leave behind, and how a part is written.

Everything above is the same for all of them (text, splits), and so is the dataset that comes out. An engine
is one file that turns typed rows into ids, counts and scaled numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, get_args

import polars as pl

from stampede import ConfigError
from stampede.pipeline.dataset import LABEL, Split
from stampede.pipeline.encode import Encoder
from stampede.pipeline.options import PrepareOptions
from stampede.pipeline.progress import Progress, counted
from stampede.pipeline.schema import Schema
from stampede.pipeline.split import SPLIT, split_code, split_of_code

EngineName = Literal["polars", "nvtabular"]
ENGINES: tuple[EngineName, ...] = get_args(EngineName)

SCRATCH = "scratch"

ROWS_PER_GROUP = 1 << 17


@dataclass(frozen=True)
class Job:
    """What an engine is given.

    Attributes
    ----------
    schema, options:
        What the log holds, and what is wanted of it.
    rows:
        The rows of a spool (:mod:`stampede.pipeline.rows`) in order, each with its split.
    sizes:
        Number of rows of each split that has any.
    folder:
        The dataset that is being built. What an engine leaves there besides the parts is part of the dataset.
    memory:
        Bytes that vocabularies and counts may take at a time.
    """

    schema: Schema
    options: PrepareOptions
    rows: pl.LazyFrame
    sizes: dict[Split, int]
    folder: Path
    memory: int

    @property
    def scratch(self) -> Path:
        """Folder for what is needed on the way only."""
        return self.folder / SCRATCH

    @property
    def total(self) -> int:
        """Number of rows."""
        return sum(self.sizes.values())

    @property
    def fitted_splits(self) -> tuple[Split, ...]:
        """Splits whose rows vocabularies and statistics come from."""
        return tuple(self.sizes) if self.options.fit_on == "all" else ("train",)

    @property
    def fitted_total(self) -> int:
        """Number of the rows that vocabularies and statistics come from."""
        return sum(self.sizes[split] for split in self.fitted_splits)

    @property
    def fitted_rows(self) -> pl.LazyFrame:
        """Rows that vocabularies and statistics come from."""
        return self.rows if self.options.fit_on == "all" else self.rows_of("train")

    def rows_of(self, split: Split) -> pl.LazyFrame:
        """Return the rows of a split, in order."""
        return self.rows.filter(pl.col(SPLIT) == split_code(split))

    def write_parts(self, encoded: pl.LazyFrame, progress: Progress) -> None:
        """Write encoded rows, in order, each to the part of its split, in one pass.

        Parameters
        ----------
        encoded:
            The split of each row (:data:`SPLIT`), and the columns of the contract, in order and of its types.
        """
        encoded = encoded.with_columns(counted(pl.col(LABEL), pl.Int8, progress.advance))
        by_split = pl.PartitionBy(
            self.folder,
            key=SPLIT,
            include_key=False,
            file_path_provider=lambda file: part_name(split_of_code(file.partition_keys.item())),
            approximate_bytes_per_file=None,
        )
        encoded.sink_parquet(by_split, compression="zstd", row_group_size=ROWS_PER_GROUP, mkdir=True)


class Engine(Protocol):
    """A way to compute a dataset."""

    def check(self) -> None:
        """Raise unless this engine can run here.

        Raises
        ------
        DeviceError
            Names what is missing, and how to get it.
        """

    def run(self, job: Job, progress: Progress) -> Encoder:
        """Fit on the fitted rows, write vocabularies and the part of every split, return what was fitted."""


def part_name(split: Split) -> str:
    """Return where the rows of a split lie in a dataset."""
    return f"{split}/part-00000.parquet"


def engine_named(name: str) -> Engine:
    """Return the engine of that name.

    Raises
    ------
    ConfigError
        There is none.
    """
    if name == "polars":
        from stampede.pipeline.engine_polars import PolarsEngine

        return PolarsEngine()
    if name == "nvtabular":
        from stampede.pipeline.engine_nvtabular import NVTabularEngine

        return NVTabularEngine.of_environment()
    raise ConfigError(f"--engine {name}: choose {' or '.join(ENGINES)}")
