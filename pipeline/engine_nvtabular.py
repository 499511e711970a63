"""The engine ``nvtabular``: a real ``nvtabular.Workflow``, for people who live in Merlin.

NVTabular 23.8 needs old packages, so it has an environment of its own and runs in a process of its own
(:mod:`stampede.pipeline.nvtabular_worker`), on pandas or, where there is a GPU, on cuDF and dask-cuda. Rows
go there and back as parquet. What comes back is translated into the contract:

- ids: NVTabular leaves values of the same count in no order, so its ids are renumbered;
- counts: recounted from the encoded rows; those that it stores are not relied on;
- ``--max-size``: NVTabular takes it or a minimum count, never both, so it is applied when ids are renumbered;
- ``--hash-buckets``: its hash differs between devices, so buckets are computed here;
- dense statistics: exact ones are computed here and given to the workflow.

Ids, counts, rows, their order and the vocabularies are those of every engine, exactly; dense columns agree
within one unit in the last place of float32, for the libraries differ in their logarithm.

The workflow is saved as ``DATASET/nvtabular_workflow``, renumbered too: from rows as :func:`hand_over` writes
them it gives the ids, counts and numbers of the dataset (id 2 in place of hash buckets).
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

import polars as pl

from stampede import ConfigError, DeviceError
from stampede.pipeline.dataset import LABEL, VOCABULARY_FOLDER, DenseInfo, DenseMode, Split
from stampede.pipeline.dense import SMALLEST_SPREAD, fit_dense
from stampede.pipeline.encode import Encoder, field_values
from stampede.pipeline.engine import Job
from stampede.pipeline.fit import VocabularyFolder, sum_targets, with_folds
from stampede.pipeline.nvtabular_ids import escape, recount, renumber_workflow, stored_values, translate
from stampede.pipeline.progress import Progress
from stampede.pipeline.publish import DiskFullError, disk_is_full
from stampede.pipeline.split import SPLIT, split_code
from stampede.pipeline.spool import ROW

WORKFLOW_FOLDER = "nvtabular_workflow"

PYTHON_VARIABLE = "STAMPEDE_NVTABULAR_PYTHON"
WORKERS_VARIABLE = "STAMPEDE_NVTABULAR_WORKERS"
PART_SIZE_VARIABLE = "STAMPEDE_NVTABULAR_PART_SIZE"
DEFAULT_PART_SIZE = "256MB"

CHECKOUT = Path(__file__).resolve().parents[1]
WORKER = Path(__file__).with_name("nvtabular_worker.py")
HANDED_ROWS_PER_GROUP = 1 << 16

MEND = f"run 'make env-nvtabular', or name a Python that has it in {PYTHON_VARIABLE}"

# Names that its frames use themselves while they encode.
TAKEN_NAMES = ("labels", "order", "__tmp__")


@dataclass(frozen=True)
class NVTabularEngine:
    """Runs a workflow of NVTabular.

    Attributes
    ----------
    python:
        The interpreter that has NVTabular; None where there is none.
    workers:
        Processes of a Dask cluster on the CPU; 1 works without a cluster. On GPUs there is one per GPU.
    part_size:
        Size of a partition in memory, as ``nvtabular.Dataset`` takes it.
    """

    python: Path | None
    workers: int = 1
    part_size: str = DEFAULT_PART_SIZE

    @classmethod
    def of_environment(cls) -> Self:
        """Return the engine that the environment variables describe.

        ``STAMPEDE_NVTABULAR_PYTHON`` names the interpreter (default: that of ``.venv-nvtabular`` in the
        checkout, else this one if it has NVTabular), ``…_WORKERS`` and ``…_PART_SIZE`` the rest.
        """
        workers = os.environ.get(WORKERS_VARIABLE, "1")
        if not workers.isdecimal() or int(workers) < 1:
            raise ConfigError(f"{WORKERS_VARIABLE}={workers}: it must be a number of processes, 1 or more")
        return cls(_find_python(), int(workers), os.environ.get(PART_SIZE_VARIABLE, DEFAULT_PART_SIZE))

    def check(self) -> None:
        """Raise unless NVTabular can be imported there."""
        if self.python is None:
            raise DeviceError(f"--engine nvtabular: there is no environment with NVTabular: {MEND}")
        _check_import(self.python)

    def run(self, job: Job, progress: Progress) -> Encoder:
        """Fit on the fitted rows and write the part of every split; see :class:`Engine`."""
        schema, options = job.schema, job.options
        fields = tuple(field_values(schema, options.encoding))
        _check_names(fields)
        progress.start("fit", None)
        dense = fit_dense(job.fitted_rows, schema.dense, mode=options.dense_mode)
        work, workflow = job.scratch / "nvtabular", job.folder / WORKFLOW_FOLDER
        handed = {split: hand_over(job, split, work / f"{split}.parquet") for split in job.sizes}
        encoded_folders = {split: work / f"{split}.encoded" for split in job.sizes}
        fitted = [handed[split] for split in job.fitted_splits]
        self._work(
            work,
            {
                "label": LABEL,
                **_fields_document(fields, fitted),
                # Buckets are computed from values, so none may become "rare" before.
                "min_count": 1 if options.hash_buckets else options.min_count,
                "counts": options.counts,
                "dense": _dense_document(dense, options.dense_mode),
                "dense_mode": options.dense_mode.value,
                "dense_null_flag": options.dense_null_flag,
                "fit": [str(file) for file in fitted],
                "splits": [{"rows": str(handed[s]), "out": str(encoded_folders[s])} for s in job.sizes],
                "workflow": str(workflow),
                "scratch": str(work),
                "workers": self.workers,
                "part_size": self.part_size,
            },
        )

        progress.start("encode", job.total)
        encoded = {split: _scan_parts(folder) for split, folder in encoded_folders.items()}
        stored = {field: stored_values(workflow, field) for field in fields}
        fitted_ids = pl.concat([encoded[split] for split in job.fitted_splits])
        vocabularies = VocabularyFolder(job.folder / VOCABULARY_FOLDER, fields, job.memory)
        for field, vocabulary in recount(fitted_ids, stored, options):
            vocabularies.add(field, vocabulary)
        encoder = Encoder(schema, options.encoding, dense, vocabularies)
        parts = []
        for split in job.sizes:
            texts = pl.scan_parquet(handed[split], glob=False)
            code = pl.lit(split_code(split), pl.Int8).alias(SPLIT)
            parts.append(translate(encoded[split], texts, vocabularies, stored).with_columns(code))
        rows = with_folds(pl.concat(parts), options)
        encoder, out_of_fold = sum_targets(rows.filter(pl.col(SPLIT) == split_code("train")), encoder)
        keep = (SPLIT, LABEL)
        job.write_parts(
            encoder.completed(rows, counts=options.counts, keep=keep, out_of_fold=out_of_fold), progress
        )
        for field, vocabulary in vocabularies.items():
            renumber_workflow(workflow, field, vocabulary)
        return encoder

    def _work(self, work: Path, document: dict[str, Any]) -> None:
        """Run the worker, from a folder without other Python files, which it would import as its own."""
        assert self.python is not None
        script = shutil.copy(WORKER, work)
        (work / "job.json").write_text(json.dumps(document), "utf-8")
        done = subprocess.run(
            [self.python, script, work / "job.json"], capture_output=True, text=True, check=False, cwd=work
        )
        if done.returncode == 0:
            return
        error = RuntimeError(done.stderr)
        if disk_is_full(error, work):
            raise DiskFullError(work) from error
        if done.returncode < 0:
            name = signal.Signals(-done.returncode).name
            hint = f"is there enough memory? A smaller {PART_SIZE_VARIABLE} (now {self.part_size}) takes less"
            raise DeviceError(f"--engine nvtabular: its process ended with {name}: {hint}") from error
        raise DeviceError(f"--engine nvtabular failed: {_last_line(done.stderr)}") from error


def hand_over(job: Job, split: Split, file: Path) -> Path:
    """Write the rows of a split for NVTabular: label, numbers (null where empty), each field's text."""
    dense = () if job.options.dense_mode == DenseMode.LOG_BUCKET else job.schema.dense
    fields = field_values(job.schema, job.options.encoding)
    texts = [escape(value).alias(field) for field, value in fields.items()]
    rows = job.rows_of(split).select(ROW, LABEL, *dense, *texts)
    rows.sink_parquet(file, compression="lz4", row_group_size=HANDED_ROWS_PER_GROUP, mkdir=True)
    return file


def _check_names(fields: Sequence[str]) -> None:
    taken = [field for field in fields if field in TAKEN_NAMES]
    if taken:
        raise ConfigError(
            f"--engine nvtabular: NVTabular cannot encode a column named {taken[0]}: "
            "rename it in the schema, or take --engine polars"
        )


def _fields_document(fields: Sequence[str], fitted: Sequence[Path]) -> dict[str, Any]:
    """Return which fields have a value in the fitted rows and which have none."""
    if not fields:
        return {"fields": [], "empty_fields": []}
    rows = pl.scan_parquet(list(fitted), glob=False)
    present = rows.select(pl.col(field).count() for field in fields).collect(engine="streaming").row(0)
    return {
        "fields": [field for field, values in zip(fields, present, strict=True) if values],
        "empty_fields": [field for field, values in zip(fields, present, strict=True) if not values],
    }


def _dense_document(dense: Sequence[DenseInfo], mode: DenseMode) -> list[dict[str, Any]]:
    """Return the statistics of the dense columns, with the spread that each is divided by."""
    if mode == DenseMode.LOG_BUCKET:
        return []
    document = []
    for info in dense:
        spread = info.maximum - info.minimum if info.std is None else info.std
        document.append(info.model_dump() | {"spread": spread, "constant": spread < SMALLEST_SPREAD})
    return document


def _scan_parts(folder: Path) -> pl.LazyFrame:
    """Scan what NVTabular wrote: part_0.parquet, part_1.parquet, …, one per partition, in order."""
    files = sorted(folder.glob("part_*.parquet"), key=lambda file: int(file.stem.removeprefix("part_")))
    return pl.scan_parquet(files, glob=False)


def _find_python() -> Path | None:
    named = os.environ.get(PYTHON_VARIABLE)
    if named:
        return Path(named)
    beside = CHECKOUT / ".venv-nvtabular" / "bin" / "python"
    if beside.exists():
        return beside
    return Path(sys.executable) if importlib.util.find_spec("nvtabular") else None


@cache
def _check_import(python: Path) -> None:
    code = "import warnings; warnings.simplefilter('ignore'); import nvtabular"
    try:
        asked = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False, cwd="/")
    except OSError as error:
        raise DeviceError(f"--engine nvtabular: {python}: {error.strerror}: {MEND}") from error
    if asked.returncode:
        reason = _last_line(asked.stderr) or f"it ends with code {asked.returncode}"
        raise DeviceError(f"--engine nvtabular: {python} cannot import NVTabular ({reason}): {MEND}")


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]
