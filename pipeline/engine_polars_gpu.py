"""The engine ``polars-gpu``: the plan of the engine ``polars`` on NVIDIA GPUs, by cudf-polars.

The text stage and the division into splits run on the CPU, as for every engine. Counts, statistics and the
encoding of each split are lazy plans of which every node runs on the GPU; one that would not is an error,
unless :class:`GpuOptions` has somebody to tell. Three ways to run them:

- ``in-memory``: on one GPU, where the rows surely fit into its memory (:func:`fits`);
- ``streaming``: on one GPU, chunk by chunk;
- ``dask``: on every visible GPU, one worker each; a split then has several parts.

What cudf-polars cannot do is done another way. It has no Enum and calls no Python, so ids and counts are
looked up by ``replace_strict``, which keeps the rows in order, where a join would not. It has no blake2b, so
hash buckets are computed on the CPU, once for each distinct value without an id, and join the lookup.
Host memory holds the distinct values of a field while they are counted, and while rows are encoded the
vocabularies of all fields.

Ids, counts, rows and their order are those of every engine; dense columns agree within one unit in the last
place of float32, for logarithms differ.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from stampede import DeviceError
from stampede.pipeline.dataset import FIRST_VALUE_ID, NULL_ID, UNSEEN_ID, Split
from stampede.pipeline.dense import Collect
from stampede.pipeline.encode import Encoder, field_values
from stampede.pipeline.engine import ROWS_PER_GROUP, GpuExecutor, GpuOptions, Job, part_name
from stampede.pipeline.engine_polars import PolarsPlan
from stampede.pipeline.fit import VocabularyFolder
from stampede.pipeline.progress import Progress
from stampede.pipeline.publish import DiskFullError, disk_is_full
from stampede.pipeline.split import SPLIT, split_code
from stampede.pipeline.vocabulary import Entries, Lookup, Vocabulary, count_plan, hash_bucket

Backend = Literal["in-memory", "streaming", "dask"]

NAME = "--engine polars-gpu"
INSTALL = "pip install -c constraints-gpu.txt '.[gpu]'"
DRIVER = "install one of version 580 or newer, or take --engine polars"

# cudf-polars is built for CUDA 13, which a driver of version 580 or newer runs.
OLDEST_CUDA = 13_000

TRIAL = (
    "import polars as pl; engine = pl.GPUEngine(executor='in-memory', raise_on_fail=True)\n"
    "assert pl.LazyFrame({'x': [1, 2]}).sum().collect(engine=engine).item() == 3"
)
TRIAL_TIMEOUT_S = 120

# By these a job is held to fit into memory, or not.
BYTES_PER_VALUE = 32
BYTES_PER_SPOOLED_BYTE = 16
MOST_ROWS = (1 << 31) - 1  # of a table of libcudf


@dataclass(frozen=True)
class PolarsGpuEngine:
    """Runs the plan on cudf-polars."""

    options: GpuOptions = field(default_factory=GpuOptions)

    def check(self) -> None:
        """Raise unless a query can run on a GPU here."""
        if importlib.util.find_spec("cudf_polars") is None:
            raise DeviceError(f"{NAME}: cudf-polars is not installed: {INSTALL}")
        several = len(visible_gpus()) > 1 and self.options.executor == "auto"
        if (several or self.options.executor == "dask") and importlib.util.find_spec("dask_cuda") is None:
            raise DeviceError(f"{NAME}: dask-cuda is not installed: {INSTALL}")
        _try_query()

    def run(self, job: Job, progress: Progress) -> Encoder:
        """Run the plan; see :class:`Engine`."""
        with self.runner(job) as runner:
            return GpuPlan(job, progress, runner.collect).run()

    def runner(self, job: Job) -> AbstractContextManager[Runner]:
        """Return what runs the plans of a job, while the context lasts."""
        return _runner_on(backend_of(job, self.options.executor, visible_gpus()), self.options, job.scratch)


class GpuPlan(PolarsPlan):
    """The plan of the engine ``polars``, run by a :class:`Runner`."""

    def passes(self, values: Mapping[str, pl.Expr]) -> Mapping[str, int]:
        """Return one for each field: cudf-polars has no hash to choose a part of the values by."""
        return dict.fromkeys(values, 1)

    def lookup(self, values: Mapping[str, pl.Expr], vocabularies: VocabularyFolder) -> Lookup:
        """Return how values become ids."""
        return GpuLookup(self.job.rows, self.collect)

    def write(self, encoded: pl.LazyFrame) -> None:
        """Write encoded rows, split by split."""
        job = self.job
        for split, size in job.sizes.items():
            part = encoded.filter(pl.col(SPLIT) == split_code(split)).drop(SPLIT)
            self.collect(parquet_sink(part, job.scratch / f"{split}.encoded"))
            put_parts(job, split)
            self.progress.advance(size)


@dataclass
class Runner:
    """Runs plans on a GPU.

    Attributes
    ----------
    engine:
        What polars is told to run them on.
    scratch:
        A folder of the job, to look at when a plan fails.
    on_fallback:
        Told, once, that a plan runs on the CPU; None makes that an error.
    """

    engine: pl.GPUEngine | Literal["streaming"]
    scratch: Path
    on_fallback: Callable[[str], None] | None = None
    told: bool = field(default=False, init=False)

    def collect(self, plan: pl.LazyFrame) -> pl.DataFrame:
        """Return what a plan gives."""
        try:
            return plan.collect(engine=self.engine)
        except Exception as error:
            if disk_is_full(error, self.scratch):
                raise DiskFullError(self.scratch) from error
            reason = _not_on_gpu(error)
            if reason is None:
                raise DeviceError(f"{NAME} failed: {_in_a_line(error)}{_hint(error)}") from error
            if self.on_fallback is None:
                raise DeviceError(
                    f"{NAME}: a part of the plan cannot run on the GPU ({reason}): "
                    "allow it to run on the CPU with --allow-fallback, or take --engine polars"
                ) from error
        if not self.told:
            self.on_fallback(f"{NAME}: a part of the plan runs on the CPU ({reason})")
            self.told = True
        return plan.collect(engine="streaming")


@dataclass(frozen=True)
class GpuLookup(Lookup):
    """Looks ids and counts up in tables that are part of the plan.

    Attributes
    ----------
    rows:
        All rows of the job, whose values may get a hash bucket.
    collect:
        How a plan is run.
    known:
        The ids of fields that were asked for.
    """

    rows: pl.LazyFrame
    collect: Collect
    known: dict[str, pl.Expr] = field(default_factory=dict)

    def ids(self, name: str, vocabularies: Mapping[str, Vocabulary], value: pl.Expr) -> pl.Expr:
        """Int32 ids of the values (String) of a field; see :class:`Lookup`."""
        if name not in self.known:
            self.known[name] = self._ids(vocabularies[name], value)
        return self.known[name]

    def entries(self, ids: pl.Expr, table: npt.NDArray[np.generic]) -> pl.Expr:
        """Entries of a table at ids; see :class:`Lookup`."""
        entries = pl.Series(table)
        numbers = pl.Series(np.arange(len(table), dtype=np.int32))
        nothing = pl.lit(0, entries.dtype)  # there is no other id
        return ids.cast(pl.Int32).replace_strict(
            numbers, entries, default=nothing, return_dtype=entries.dtype
        )

    def _ids(self, vocabulary: Vocabulary, value: pl.Expr) -> pl.Expr:
        values = [pl.Series([None], dtype=pl.String), vocabulary.values]
        ids = [np.array([NULL_ID]), np.arange(len(vocabulary.values)) + FIRST_VALUE_ID]
        if vocabulary.buckets:
            others = self._others(vocabulary, value)
            values.append(others)
            ids.append(hash_bucket(others, vocabulary.buckets) + FIRST_VALUE_ID + len(vocabulary.values))
        old = pl.concat([series.rename("value") for series in values])
        new = pl.Series(np.concatenate(ids).astype(np.int32))
        return value.replace_strict(old, new, default=UNSEEN_ID, return_dtype=pl.Int32)

    def with_entries(self, rows: pl.LazyFrame, columns: Mapping[str, Entries]) -> pl.LazyFrame:
        """Add columns that are entries of tables; see :class:`Lookup`."""
        return rows.with_columns(
            self.entries(ids, table).alias(name) for name, (ids, table) in columns.items()
        )

    def _others(self, vocabulary: Vocabulary, value: pl.Expr) -> pl.Series:
        """Return the distinct values of all rows that have no id of their own."""
        found = self.collect(count_plan(self.rows, value)).select("value").drop_nulls()
        return found.join(vocabulary.values.to_frame("value"), on="value", how="anti")["value"]


def parquet_sink(rows: pl.LazyFrame, path: Path) -> pl.LazyFrame:
    """Return the plan that writes rows, in order, to a file; on several GPUs to files in a folder."""
    # cudf-polars takes no compression level
    return rows.sink_parquet(path, compression="zstd", row_group_size=ROWS_PER_GROUP, lazy=True)


def put_parts(job: Job, split: Split) -> None:
    """Give the files that were written for a split their place; those without rows are left out."""
    written = job.scratch / f"{split}.encoded"
    # on several GPUs part.RANK.NUMBER.parquet, by rank and number the rows in order
    files = sorted(written.iterdir()) if written.is_dir() else [written]
    filled = [file for file in files if pl.scan_parquet(file, glob=False).select(pl.len()).collect().item()]
    (job.folder / split).mkdir()
    for number, file in enumerate(filled):
        file.replace(job.folder / part_name(split, number))


def backend_of(job: Job, executor: GpuExecutor, gpus: list[str]) -> Backend:
    """Return how to run a job: as the option says, else ``dask`` on several GPUs, on one as it fits."""
    if executor != "auto":
        return executor
    if len(gpus) > 1:
        return "dask"
    return "in-memory" if fits(job, free_memory(gpus[0])) else "streaming"


def fits(job: Job, free: int) -> bool:
    """Whether the largest split surely fits into the memory of a GPU, with what is made of it on the way.

    32 bytes count for each value that is read or written, twice of what they take where texts have ten bytes.
    Longer ones show in the spool, whose bytes count 16 times, for it is compressed.
    """
    rows = max(job.sizes.values())
    encoding = job.options.encoding
    fields = tuple(field_values(job.schema, encoding))
    written = len(fields) * (2 if job.options.counts else 1) + len(
        encoding.dense_columns(job.schema.dense, fields)
    )
    columns = len(job.rows.collect_schema()) + written
    spooled = job.spool_bytes * rows // job.total
    needed = max(rows * columns * BYTES_PER_VALUE, spooled * BYTES_PER_SPOOLED_BYTE)
    return rows <= MOST_ROWS and needed <= free


def gpu_engine(backend: Backend) -> pl.GPUEngine:
    """Return the engine of polars for one GPU: an error where it cannot run all of a plan on it."""
    if backend == "in-memory":
        return pl.GPUEngine(executor="in-memory", raise_on_fail=True)
    # "raise": else what cannot be done in chunks would take all rows at once
    return pl.GPUEngine(executor="streaming", raise_on_fail=True, executor_options={"fallback_mode": "raise"})


@contextmanager
def _runner_on(backend: Backend, options: GpuOptions, scratch: Path) -> Iterator[Runner]:
    with ExitStack() as stack:
        if backend == "dask":
            try:
                engine = stack.enter_context(_dask_engine())
            except Exception as error:
                raise DeviceError(f"{NAME}: no Dask cluster on the GPUs: {_in_a_line(error)}") from error
        else:
            engine = gpu_engine(backend)
        yield Runner(engine, scratch, options.on_fallback)


def _dask_engine() -> Any:
    """Return cudf-polars' engine with a worker on every visible GPU."""
    from cudf_polars.engine.dask import DaskEngine

    return DaskEngine(executor_options={"fallback_mode": "raise"}, engine_options={"raise_on_fail": True})


def visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, as ``CUDA_VISIBLE_DEVICES`` names them.

    Raises
    ------
    DeviceError
        There is none; the message says why.
    """
    import pynvml  # a dependency of cudf-polars

    try:
        pynvml.nvmlInit()
        present = pynvml.nvmlDeviceGetCount()
        cuda = pynvml.nvmlSystemGetCudaDriverVersion()
    except pynvml.NVMLError as error:
        raise DeviceError(f"{NAME}: no NVIDIA driver ({error}): {DRIVER}") from error
    if cuda < OLDEST_CUDA:
        runs = f"{cuda // 1000}.{cuda % 1000 // 10}"
        raise DeviceError(f"{NAME}: the NVIDIA driver runs CUDA up to {runs}, and 13.0 is needed: {DRIVER}")
    if present == 0:
        raise DeviceError(f"{NAME}: the NVIDIA driver shows no GPU here: take --engine polars")
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return [str(number) for number in range(present)]
    gpus = []
    for gpu in named.split(","):
        if not gpu.strip() or gpu.strip().startswith("-"):
            break
        gpus.append(gpu.strip())
    if not gpus:
        raise DeviceError(f"{NAME}: CUDA_VISIBLE_DEVICES={named} hides every GPU: unset it")
    return gpus


def free_memory(gpu: str) -> int:
    """Return the bytes of memory of a GPU that nobody uses."""
    import pynvml

    pynvml.nvmlInit()
    find = pynvml.nvmlDeviceGetHandleByIndex if gpu.isdecimal() else pynvml.nvmlDeviceGetHandleByUUID
    return int(pynvml.nvmlDeviceGetMemoryInfo(find(int(gpu) if gpu.isdecimal() else gpu)).free)


def _try_query() -> None:
    """Run a query on the GPU, in a process of its own: what it sets up is not what the job needs."""
    try:
        tried = subprocess.run(
            [sys.executable, "-c", TRIAL],
            capture_output=True,
            text=True,
            check=False,
            timeout=TRIAL_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise DeviceError(f"{NAME}: the GPU gives no answer within {TRIAL_TIMEOUT_S} s") from error
    if tried.returncode:
        reason = (tried.stderr.strip().splitlines() or [f"it ends with code {tried.returncode}"])[-1]
        raise DeviceError(f"{NAME}: no query runs on the GPU ({reason}): {INSTALL}, or take --engine polars")


def _not_on_gpu(error: BaseException) -> str | None:
    """Return why a plan cannot run on the GPU where that is what an error says, else None."""
    text = f"{type(error).__name__}: {error}"
    if "NotImplementedError" not in text:
        return None
    reasons = re.findall(r"- NotImplementedError: (.*?)(?:\\n|\n|'|$)", text)
    return "; ".join(dict.fromkeys(reasons)) or _in_a_line(error)


def _hint(error: BaseException) -> str:
    """Return the mend of an error where there is one."""
    text = f"{type(error).__name__}: {error}".lower()
    if any(words in text for words in ("memoryerror", "bad_alloc", "out_of_memory", "out of memory")):
        return ": is there enough GPU memory? --gpu-executor streaming takes less, --engine polars none"
    return ""


def _in_a_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
