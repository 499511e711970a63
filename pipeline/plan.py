"""The plan: raw click logs -> spool -> split -> an engine's vocabularies, statistics and parts -> dataset."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from stampede import ConfigError, InputError
from stampede.pipeline.dataset import (
    LABEL,
    MANIFEST,
    NULL_ID,
    REJECTED,
    SPLITS,
    UNSEEN_ID,
    VOCABULARY_FOLDER,
    Dataset,
    FieldInfo,
    Manifest,
    PartInfo,
    Split,
    SplitInfo,
)
from stampede.pipeline.encode import Encoder, check_columns
from stampede.pipeline.engine import SCRATCH, SPOOL_FOLDER, EngineName, GpuOptions, Job, engine_named
from stampede.pipeline.memory import reading_little_ahead, working_memory
from stampede.pipeline.options import PrepareOptions
from stampede.pipeline.progress import Progress, Silent
from stampede.pipeline.publish import building, check_free, normal
from stampede.pipeline.schema import Schema
from stampede.pipeline.sources import resolve_inputs
from stampede.pipeline.split import (
    SPLIT,
    check_splits,
    split_after_reading,
    split_of_code,
    split_while_reading,
)
from stampede.pipeline.spool import write_spool

# A folder with one of these is a dataset, or was to become one: --force replaces it.
REPLACED = (MANIFEST, VOCABULARY_FOLDER)


def check_dataset_free(out: str | Path, *, force: bool) -> None:
    """Raise unless a dataset may be made at ``out``.

    Raises
    ------
    DatasetError
        Something is there that may not be replaced.
    """
    check_free(normal(Path(out)), force=force, replaces=REPLACED)


def prepare(
    schema: Schema,
    inputs: Sequence[str | Path],
    out: str | Path,
    *,
    options: PrepareOptions | None = None,
    engine: EngineName = "polars",
    gpu: GpuOptions | None = None,
    memory: int | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Dataset:
    """Make a dataset of raw click logs.

    Parameters
    ----------
    schema:
        What the log holds.
    inputs:
        Files or glob patterns, read as one log in order.
    out:
        The folder to make. It appears whole or not at all.
    engine:
        What computes it; the dataset is the same.
    gpu:
        Options of the engine ``polars-gpu``.
    memory:
        Bytes of memory that the job may take; None for half of what the machine or container has. Large
        vocabularies are counted and looked up in parts that fit.
    force:
        Whether an existing dataset there is replaced.

    Raises
    ------
    InputError, SchemaError
        The input cannot be used; the message names file, line and column.
    ConfigError
        The options contradict each other or leave a split empty.
    DatasetError
        ``out`` exists or cannot be written.
    DeviceError
        The engine cannot run here.

    Example
    -------
    >>> from stampede.pipeline import Schema, prepare
    >>> dataset = prepare(Schema.preset("criteo"), ["train.txt"], "data/criteo")  # doctest: +SKIP
    """
    options = options or PrepareOptions()
    progress = progress or Silent()
    target = normal(Path(out))
    if memory is not None and engine != "polars":
        raise ConfigError(f"--engine {engine}: --memory-limit is an option of --engine polars")
    working = working_memory(memory)
    check_columns(schema, options.encoding)
    chosen = engine_named(engine, gpu=gpu)
    chosen.check()
    with reading_little_ahead(), building(target, force=force, replaces=REPLACED) as folder:
        files = resolve_inputs(inputs)
        scratch = folder / SCRATCH
        progress.start("read", None)
        spool = write_spool(
            files,
            schema,
            scratch / SPOOL_FOLDER,
            bad_rows=options.bad_rows,
            computed=split_while_reading(options.split),
            on_rows=progress.advance,
        )
        if spool.rows == 0:
            raise no_rows_error(files, spool.rejected)
        rows = spool.scan()
        rows = rows.with_columns(split_after_reading(rows, options.split))
        sizes = _count_splits(rows)
        check_splits(sizes, options.split)

        encoder = chosen.run(Job(schema, options, rows, sizes, folder, working), progress)

        encoder.save_targets(folder)
        splits = {split: split_info(folder, split) for split in sizes}
        if spool.rejected.height:
            spool.rejected.write_parquet(folder / REJECTED)
        manifest = Manifest(
            schema=schema,
            split=options.split,
            fit_on=options.fit_on,
            min_count=options.min_count,
            max_size=options.max_size,
            hash_buckets=options.hash_buckets,
            encoding=options.encoding,
            counts=options.counts,
            fields=_field_infos(folder, encoder, splits, options),
            dense=encoder.dense,
            splits=splits,
            rejected=spool.rejected.height,
        )
        shutil.rmtree(scratch)
        (folder / MANIFEST).write_text(manifest.to_json(), "utf-8")
    return Dataset.open(target)


def no_rows_error(files: Sequence[Path], rejected: pl.DataFrame) -> InputError:
    """Return the error of inputs without a row that can be used."""
    file = files[0] if len(files) == 1 else None
    if rejected.is_empty():
        return InputError(
            "there is no row in it" if file else "there is no row in any of the inputs", file=file
        )
    first = rejected.row(0, named=True)
    return InputError(
        f"none of the {rejected.height} rows can be used; the first: {first['reason']}",
        file=first["file"],
        line=first["line"],
        column=first["column"],
    )


def _count_splits(rows: pl.LazyFrame) -> dict[Split, int]:
    """Return the number of rows of each split that has any, in the order of SPLITS."""
    counted = rows.group_by(SPLIT).len().collect(engine="streaming")
    sizes = {split_of_code(code): number for code, number in counted.iter_rows()}
    return {split: sizes[split] for split in SPLITS if split in sizes}


def split_info(folder: Path, split: Split) -> SplitInfo:
    """Return what lies in the folder of a split."""
    total = clicks = 0
    parts = []
    for file in sorted((folder / split).iterdir()):
        written = pl.scan_parquet(file, glob=False).select(pl.len(), pl.col(LABEL).sum().cast(pl.Int64))
        rows, clicked = written.collect(engine="streaming").row(0)
        parts.append(PartInfo(path=f"{split}/{file.name}", rows=rows))
        total, clicks = total + rows, clicks + clicked
    return SplitInfo(rows=total, click_rate=clicks / total, files=tuple(parts))


def _field_infos(
    folder: Path, encoder: Encoder, splits: dict[Split, SplitInfo], options: PrepareOptions
) -> tuple[FieldInfo, ...]:
    """Sizes of the fields, with the null and rare rows of the training split."""
    sizes, null, rare = {}, {}, {}
    for name, vocabulary in encoder.vocabularies.items():
        sizes[name] = vocabulary.size
        null[name], rare[name] = (int(vocabulary.counts[reserved]) for reserved in (NULL_ID, UNSEEN_ID))
    if options.fit_on == "all":
        train = pl.scan_parquet([folder / part.path for part in splits["train"].files], glob=False)
        ids = pl.col(list(sizes))
        null = train.select((ids == NULL_ID).sum()).collect(engine="streaming").row(0, named=True)
        rare = train.select((ids == UNSEEN_ID).sum()).collect(engine="streaming").row(0, named=True)
    return tuple(
        FieldInfo(name=name, size=size, null=null[name], rare=rare[name]) for name, size in sizes.items()
    )
