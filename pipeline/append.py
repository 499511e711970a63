"""Later files of a log -> a further split of its dataset, by the vocabulary and statistics that it has."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from stampede import ConfigError, DatasetError
from stampede.pipeline.dataset import (
    LABEL,
    MANIFEST,
    REJECTED,
    SPLIT_NAME,
    TARGET_FOLDER,
    VOCABULARY_FOLDER,
    Dataset,
    Split,
)
from stampede.pipeline.encode import Encoder
from stampede.pipeline.engine import SCRATCH, SPOOL_FOLDER, part_name, sink_part
from stampede.pipeline.engine_nvtabular import WORKFLOW_FOLDER
from stampede.pipeline.plan import no_rows_error, split_info
from stampede.pipeline.progress import Progress, Silent, counted
from stampede.pipeline.publish import building
from stampede.pipeline.schema import Schema
from stampede.pipeline.sources import resolve_inputs
from stampede.pipeline.spool import BadRows, write_spool

TAKEN_NAMES = (SCRATCH, VOCABULARY_FOLDER, TARGET_FOLDER, WORKFLOW_FOLDER, MANIFEST, REJECTED)


def append_split(
    schema: Schema,
    inputs: Sequence[str | Path],
    dataset_path: str | Path,
    split: Split,
    *,
    bad_rows: BadRows = "stop",
    progress: Progress | None = None,
) -> Dataset:
    """Add a split to a dataset: later rows, encoded by what it was fitted on.

    The dataset is exchanged as a whole: it has the split, or it is as it was. Files that do not change are
    linked, not copied, where the file system can.

    Parameters
    ----------
    schema:
        What the log holds: that of the dataset.
    inputs:
        Files or glob patterns, read as one log in order.
    split:
        A name that the dataset has no split of: letters, digits, ``_``, ``.`` and ``-``.

    Raises
    ------
    InputError, SchemaError
        The input cannot be used; the message names file, line and column.
    ConfigError
        The name cannot be that of a split, or the log is another one.
    DatasetError
        There is no dataset, it has that split, or it cannot be written.
    """
    progress = progress or Silent()
    dataset = Dataset.open(dataset_path)
    manifest = dataset.manifest
    if not SPLIT_NAME.fullmatch(split) or split in TAKEN_NAMES:
        raise ConfigError(f"--append {split!r}: take a name of letters, digits, _ . and -, such as day_24")
    if split in manifest.splits:
        raise DatasetError(f"{dataset.path} has a split {split}: choose another name for --append")
    if schema != manifest.log:
        raise ConfigError(
            f"{dataset.path} is of another log: name the preset or schema that it was made with "
            f"({manifest.log.name})"
        )
    with building(dataset.path, force=True, replaces=(MANIFEST,)) as folder:
        files = resolve_inputs(inputs)
        progress.start("read", None)
        spool = write_spool(
            files, schema, folder / SCRATCH / SPOOL_FOLDER, bad_rows=bad_rows, on_rows=progress.advance
        )
        if spool.rows == 0:
            raise no_rows_error(files, spool.rejected)
        progress.start("encode", spool.rows)
        encoded = Encoder.of_dataset(dataset).encode(spool.scan(), counts=manifest.counts, keep=(LABEL,))
        encoded = encoded.with_columns(counted(pl.col(LABEL), pl.Int8, progress.advance))
        sink_part(encoded, folder / part_name(split))
        shutil.rmtree(folder / SCRATCH)

        shutil.copytree(
            dataset.path,
            folder,
            copy_function=_link,
            ignore=lambda _, names: [name for name in names if name in (MANIFEST, REJECTED)],
            dirs_exist_ok=True,
        )
        rejected = [pl.read_parquet(dataset.path / REJECTED, glob=False)] if manifest.rejected else []
        rejected += [spool.rejected] if spool.rejected.height else []
        if rejected:
            pl.concat(rejected).write_parquet(folder / REJECTED)
        changed = manifest.model_copy(
            update={
                "splits": manifest.splits | {split: split_info(folder, split)},
                "rejected": manifest.rejected + spool.rejected.height,
                "earlier": (*manifest.earlier, dataset.fingerprint),
            }
        )
        (folder / MANIFEST).write_text(changed.to_json(), "utf-8")
    return Dataset.open(dataset.path)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copy2(source, target)
