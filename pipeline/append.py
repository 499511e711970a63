"""Later files of a log -> a further split of its dataset, by the vocabulary and statistics that it has.

The vocabulary may grow by the values that the files bring (:mod:`stampede.pipeline.grow`).
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Sequence
from dataclasses import replace
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
    Manifest,
    Split,
)
from stampede.pipeline.encode import Encoder
from stampede.pipeline.engine import SCRATCH, SPOOL_FOLDER, part_name, sink_part
from stampede.pipeline.engine_nvtabular import WORKFLOW_FOLDER
from stampede.pipeline.errors import READ_ERRORS
from stampede.pipeline.grow import GrowOptions, check_growable, grow_vocabularies, grown_manifest
from stampede.pipeline.memory import working_memory
from stampede.pipeline.plan import no_rows_error, split_info
from stampede.pipeline.progress import Progress, Silent, counted
from stampede.pipeline.publish import building, normal
from stampede.pipeline.schema import Schema
from stampede.pipeline.sources import resolve_inputs
from stampede.pipeline.spool import BadRows, Spool, write_spool

TAKEN_NAMES = (SCRATCH, VOCABULARY_FOLDER, TARGET_FOLDER, WORKFLOW_FOLDER, MANIFEST, REJECTED)


def append_split(
    schema: Schema,
    inputs: Sequence[str | Path],
    dataset_path: str | Path,
    split: Split,
    *,
    grow: GrowOptions | None = None,
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
    grow:
        How the vocabularies grow by the values of these rows; None leaves them as they are.

    Raises
    ------
    InputError, SchemaError
        The input cannot be used; the message names file, line and column.
    ConfigError
        The name cannot be that of a split, the log is another one, or its vocabularies cannot grow.
    DatasetError
        There is no dataset, it has that split, or it cannot be written.
    """
    progress = progress or Silent()
    target = normal(Path(dataset_path)).resolve()
    dataset = Dataset.open(target)
    manifest = dataset.manifest
    _check_split(dataset, split)
    if schema != manifest.log:
        raise ConfigError(
            f"{dataset.path} is of another log: name the preset or schema that it was made with "
            f"({manifest.log.name})"
        )
    if grow is not None:
        check_growable(dataset)
    encoder, rejected = Encoder.of_dataset(dataset), _rejected_before(dataset)

    def confirm() -> None:
        if Dataset.open(target).fingerprint != dataset.fingerprint:
            raise DatasetError(f"{target} was changed meanwhile: run this again")

    with building(target, force=True, replaces=(MANIFEST,), confirm=confirm) as folder:
        files = resolve_inputs(inputs)
        _take_over(dataset.path, folder, but=(VOCABULARY_FOLDER,) if grow is not None else ())
        progress.start("read", None)
        spool = write_spool(
            files, schema, folder / SCRATCH / SPOOL_FOLDER, bad_rows=bad_rows, on_rows=progress.advance
        )
        if spool.rows == 0:
            raise no_rows_error(files, spool.rejected)
        if grow is not None:
            encoder, manifest = _grow(encoder, manifest, spool, folder, split, grow, progress)
        progress.start("encode", spool.rows)
        encoded = encoder.encode(spool.scan(), counts=manifest.counts, keep=(LABEL,))
        encoded = encoded.with_columns(counted(pl.col(LABEL), pl.Int8, progress.advance))
        sink_part(encoded, folder / part_name(split))
        shutil.rmtree(folder / SCRATCH)

        rejected += [spool.rejected] if spool.rejected.height else []
        if rejected:
            pl.concat(rejected).write_parquet(folder / REJECTED)
        added = split_info(folder, split).model_copy(update={"growths": len(manifest.growths)})
        changed = manifest.model_copy(
            update={
                "splits": manifest.splits | {split: added},
                "rejected": manifest.rejected + spool.rejected.height,
                "earlier": (*manifest.earlier, dataset.fingerprint),
            }
        )
        (folder / MANIFEST).write_text(changed.to_json(), "utf-8")
    return Dataset.open(target)


def _grow(
    encoder: Encoder,
    manifest: Manifest,
    spool: Spool,
    folder: Path,
    split: Split,
    options: GrowOptions,
    progress: Progress,
) -> tuple[Encoder, Manifest]:
    """Write the vocabularies with the values of the new rows; return the encoder and manifest with them."""
    min_count = manifest.min_count if options.min_count is None else options.min_count
    grown = grow_vocabularies(
        encoder,
        spool.scan(),
        total=spool.rows,
        min_count=min_count,
        max_size=manifest.max_size,
        memory=working_memory(None),
        progress=progress,
    )
    (folder / VOCABULARY_FOLDER).mkdir()
    for name, vocabulary in grown.items():
        vocabulary.save(folder / VOCABULARY_FOLDER / f"{name}.parquet")
    changed = grown_manifest(
        manifest, encoder.vocabularies, grown, split=split, rows=spool.rows, min_count=min_count
    )
    return replace(encoder, vocabularies=grown), changed


def _check_split(dataset: Dataset, split: Split) -> None:
    """Raise unless a split of that name can be added."""
    if split in dataset.manifest.splits:
        raise DatasetError(f"{dataset.path} has a split {split}: choose another name for --append")
    if split in TAKEN_NAMES:
        raise ConfigError(f"--append {split}: a dataset has a file of this name: choose another")
    if not SPLIT_NAME.fullmatch(split):
        raise ConfigError(
            f"--append {split!r}: take a name of at most 100 letters, digits, _ . and -, such as day_24"
        )
    if (dataset.path / split).exists():
        raise DatasetError(f"{dataset.path / split} is there and no split: remove it, or choose another name")


def _rejected_before(dataset: Dataset) -> list[pl.DataFrame]:
    """Return the rows that were left out before."""
    if not dataset.manifest.rejected:
        return []
    try:
        return [pl.read_parquet(dataset.path / REJECTED, glob=False)]
    except READ_ERRORS as error:
        raise DatasetError(f"{dataset.path / REJECTED} is missing or damaged: prepare it again") from error


def _take_over(source: Path, folder: Path, *, but: Sequence[str] = ()) -> None:
    """Link all files but those that change; copy them where the file system has no links.

    A link shares its content with the dataset: what is written anew must not be among them.
    """
    for path in sorted(source.rglob("*")):
        if path.relative_to(source).parts[0] in but:
            continue
        place = folder / path.relative_to(source)
        if path.is_dir():
            place.mkdir()
        elif place not in (folder / MANIFEST, folder / REJECTED):
            _link(path, place)


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV):
            raise
        shutil.copyfile(source, target)
