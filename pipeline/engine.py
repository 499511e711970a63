"""What engines have in common: where they start, what they leave behind, and how a part is written.

Everything above is the same for all of them (text, splits), and so is the dataset that comes out. An engine
is one file that turns typed rows into ids, counts and scaled numbers.
"""

from __future__ import annotations

from collections.abc import Callable
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

EngineName = Literal["polars", "polars-gpu", "nvtabular"]
ENGINES: tuple[EngineName, ...] = get_args(EngineName)

GpuExecutor = Literal["auto", "in-memory", "streaming", "dask"]

SCRATCH = "scratch"
SPOOL_FOLDER = "spool"

ROWS_PER_GROUP = 1 << 17


@dataclass(frozen=True)
class GpuOptions:
    """How the engine ``polars-gpu`` computes.

    Attributes
    ----------
    executor:
        ``in-memory`` or ``streaming`` on one GPU, ``dask`` on all of them; ``auto`` chooses.
    on_fallback:
        Told in a line, once, that a part of the plan runs on the CPU; None makes that an error.
    """

    executor: GpuExecutor = "auto"
    on_fallback: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        known = get_args(GpuExecutor)
        if self.executor not in known:
            raise ConfigError(f"--gpu-executor {self.executor}: choose {' or '.join(known)}")


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
    def spool_bytes(self) -> int:
        """Bytes of the spool on disk."""
        return sum(file.stat().st_size for file in (self.scratch / SPOOL_FOLDER).iterdir())

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
        sink_part(encoded, by_split)


def sink_part(encoded: pl.LazyFrame, file: Path | pl.PartitionBy) -> None:
    """Write encoded rows, in order; nothing reads statistics, and a higher level hardly packs tighter."""
    encoded.sink_parquet(
        file,
        compression="zstd",
        compression_level=1,
        statistics=False,
        row_group_size=ROWS_PER_GROUP,
        mkdir=True,
    )


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


def part_name(split: Split, number: int = 0) -> str:
    """Return where a part of a split lies in a dataset."""
    return f"{split}/part-{number:05d}.parquet"


def engine_named(name: str, *, gpu: GpuOptions | None = None) -> Engine:
    """Return the engine of that name.

    Parameters
    ----------
    gpu:
        Options of ``polars-gpu``, which no other engine has.

    Raises
    ------
    ConfigError
        There is none, or it has no such options.
    """
    if name not in ENGINES:
        raise ConfigError(f"--engine {name}: choose {' or '.join(ENGINES)}")
    if name == "polars-gpu":
        from stampede.pipeline.engine_polars_gpu import PolarsGpuEngine

        return PolarsGpuEngine(gpu or GpuOptions())
    if gpu is not None:
        raise ConfigError(
            f"--engine {name}: --gpu-executor and --allow-fallback are options of --engine polars-gpu"
        )
    if name == "polars":
        from stampede.pipeline.engine_polars import PolarsEngine

        return PolarsEngine()
    from stampede.pipeline.engine_nvtabular import NVTabularEngine

    return NVTabularEngine.of_environment()
