"""The plan: raw click logs -> spool -> split -> vocabularies and statistics -> encoded parts -> dataset."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

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
    DenseMode,
    FieldInfo,
    Manifest,
    PartInfo,
    Split,
    SplitInfo,
    SplitRule,
)
from stampede.pipeline.dense import fit_dense
from stampede.pipeline.encode import Encoder, field_values
from stampede.pipeline.progress import Progress, Silent
from stampede.pipeline.publish import building
from stampede.pipeline.schema import Schema
from stampede.pipeline.sources import resolve_inputs
from stampede.pipeline.split import SPLIT, check_fractions, check_splits, split_of_row
from stampede.pipeline.spool import BadRows, write_spool
from stampede.pipeline.vocabulary import Vocabulary, count_values

ROWS_PER_GROUP = 1 << 18


@dataclass(frozen=True)
class PrepareOptions:
    """Everything that decides what a dataset holds, the input excepted.

    Attributes
    ----------
    split:
        How rows are divided.
    min_count, max_size, hash_buckets:
        Which values of a field get an id of their own; see :class:`stampede.pipeline.vocabulary.Vocabulary`.
    dense_mode, dense_null_flag:
        How dense features become model inputs, and whether a 0/1 column says where each was empty.
    fit_on:
        Rows that vocabularies and statistics come from. ``all`` lets test rows leak into them.
    counts:
        Whether parts hold the count of each id.
    bad_rows:
        Whether a row that cannot be used stops the job or is left out and listed.
    """

    split: SplitRule = field(default_factory=SplitRule)
    min_count: int = 2
    max_size: int | None = None
    hash_buckets: int = 0
    dense_mode: DenseMode = DenseMode.LOG
    dense_null_flag: bool = False
    fit_on: Literal["train", "all"] = "train"
    counts: bool = True
    bad_rows: BadRows = "stop"

    def __post_init__(self) -> None:
        check_fractions(self.split)
        for flag, value, known in (
            ("--fit-on", self.fit_on, ("train", "all")),
            ("--bad-rows", self.bad_rows, ("stop", "skip")),
            ("--dense", self.dense_mode, tuple(DenseMode)),
        ):
            if value not in known:
                raise ConfigError(f"{flag} {value}: choose {' or '.join(known)}")
        if self.min_count < 1:
            raise ConfigError(f"--min-count {self.min_count}: it must be 1 or more")
        if self.max_size is not None and self.max_size < 1:
            raise ConfigError(f"--max-size {self.max_size}: it must be 1 or more")
        if self.hash_buckets < 0:
            raise ConfigError(f"--hash-buckets {self.hash_buckets}: it must be 0 or more")
        if self.dense_null_flag and self.dense_mode == DenseMode.LOG_BUCKET:
            raise ConfigError(
                "--dense-null-flag with --dense log-bucket: there an empty feature has an id of its own"
            )


def prepare(
    schema: Schema,
    inputs: Sequence[str | Path],
    out: str | Path,
    *,
    options: PrepareOptions | None = None,
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

    Example
    -------
    >>> from stampede.pipeline import Schema, prepare
    >>> dataset = prepare(Schema.preset("criteo"), ["train.txt"], "data/criteo")  # doctest: +SKIP
    """
    options = options or PrepareOptions()
    progress = progress or Silent()
    target = Path(out)
    with building(target, force=force, replaces=(MANIFEST, VOCABULARY_FOLDER)) as folder:
        files = resolve_inputs(inputs)
        spool_folder = folder / "spool"
        progress.start("read", None)
        spool = write_spool(files, schema, spool_folder, bad_rows=options.bad_rows, on_rows=progress.advance)
        if spool.rows == 0:
            raise _no_rows(files, spool.rejected)
        rows = spool.scan()
        rows = rows.with_columns(split_of_row(rows, options.split).alias(SPLIT))
        counts = _count_splits(rows)
        check_splits(counts, options.split)

        progress.start("fit", None)
        fitted = rows if options.fit_on == "all" else rows.filter(pl.col(SPLIT) == "train")
        encoder = _fit(fitted, schema, options)

        progress.start("encode", spool.rows)
        splits = {
            split: _write_split(folder, split, rows, encoder, options, progress)
            for split in SPLITS
            if counts.get(split)
        }
        vocabulary_folder = folder / VOCABULARY_FOLDER
        vocabulary_folder.mkdir()
        for name, vocabulary in encoder.vocabularies.items():
            vocabulary.save(vocabulary_folder / f"{name}.parquet")
        if spool.rejected.height:
            spool.rejected.write_parquet(folder / REJECTED)
        manifest = Manifest(
            schema=schema,
            split=options.split,
            fit_on=options.fit_on,
            min_count=options.min_count,
            max_size=options.max_size,
            hash_buckets=options.hash_buckets,
            dense_mode=options.dense_mode,
            dense_null_flag=options.dense_null_flag,
            counts=options.counts,
            fields=_field_infos(folder, encoder, splits, options),
            dense=encoder.dense,
            splits=splits,
            rejected=spool.rejected.height,
        )
        shutil.rmtree(spool_folder)
        (folder / MANIFEST).write_text(manifest.to_json(), "utf-8")
    return Dataset.open(target)


def _no_rows(files: Sequence[Path], rejected: pl.DataFrame) -> InputError:
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
    counted = rows.group_by(SPLIT).len().collect(engine="streaming")
    return dict(zip(counted[SPLIT].cast(pl.String), counted["len"], strict=True))


def _fit(rows: pl.LazyFrame, schema: Schema, options: PrepareOptions) -> Encoder:
    counted = count_values(rows, field_values(schema, options.dense_mode))
    vocabularies = {
        name: Vocabulary.build(
            frame,
            min_count=options.min_count,
            max_size=options.max_size,
            hash_buckets=options.hash_buckets,
        )
        for name, frame in counted.items()
    }
    dense = fit_dense(rows, schema.dense, mode=options.dense_mode)
    return Encoder(schema, options.dense_mode, options.dense_null_flag, dense, vocabularies)


def _write_split(
    folder: Path,
    split: Split,
    rows: pl.LazyFrame,
    encoder: Encoder,
    options: PrepareOptions,
    progress: Progress,
) -> SplitInfo:
    """Encode the rows of one split into its folder."""

    def count(labels: pl.Series) -> pl.Series:
        progress.advance(len(labels))
        return labels

    name = f"{split}/part-00000.parquet"
    file = folder / name
    file.parent.mkdir()
    selected = rows.filter(pl.col(SPLIT) == split)
    encoded = encoder.encode(selected, counts=options.counts, keep=(LABEL,))
    counted = pl.col(LABEL).map_batches(count, return_dtype=pl.Int8, is_elementwise=True)
    encoded.with_columns(counted).sink_parquet(file, compression="zstd", row_group_size=ROWS_PER_GROUP)
    written = pl.scan_parquet(file, glob=False).select(pl.len(), pl.col(LABEL).sum().cast(pl.Int64))
    total, clicks = written.collect(engine="streaming").row(0)
    part = PartInfo(path=name, rows=total)
    return SplitInfo(rows=total, click_rate=clicks / total, files=(part,))


def _field_infos(
    folder: Path, encoder: Encoder, splits: dict[Split, SplitInfo], options: PrepareOptions
) -> tuple[FieldInfo, ...]:
    """Sizes of the fields, with the null and rare rows of the training split."""
    vocabularies = encoder.vocabularies
    if options.fit_on == "train":
        null = {name: int(v.counts[NULL_ID]) for name, v in vocabularies.items()}
        rare = {name: int(v.counts[UNSEEN_ID]) for name, v in vocabularies.items()}
    else:
        train = pl.scan_parquet([folder / part.path for part in splits["train"].files], glob=False)
        ids = pl.col(list(vocabularies))
        null = train.select((ids == NULL_ID).sum()).collect(engine="streaming").row(0, named=True)
        rare = train.select((ids == UNSEEN_ID).sum()).collect(engine="streaming").row(0, named=True)
    return tuple(
        FieldInfo(name=name, size=v.size, null=null[name], rare=rare[name])
        for name, v in vocabularies.items()
    )
