"""The engine ``polars``: lazy, streaming, on all cores, within a budget of memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil

import numpy as np
import polars as pl

from stampede.pipeline.dataset import LABEL, PADDING_ID, VOCABULARY_FOLDER
from stampede.pipeline.dense import Collect, collect_streaming, fit_dense
from stampede.pipeline.encode import Encoder, field_values
from stampede.pipeline.engine import Job
from stampede.pipeline.fit import (
    VocabularyFolder,
    build_vocabulary,
    count_in_parts,
    fit_targets,
    passes_to_count,
    with_folds,
)
from stampede.pipeline.progress import Progress
from stampede.pipeline.split import SPLIT
from stampede.pipeline.spool import ROW
from stampede.pipeline.vocabulary import Lookup, Vocabulary


class PolarsEngine:
    """Runs the plan on Polars' streaming engine."""

    def check(self) -> None:
        """Do nothing: it runs everywhere."""

    def run(self, job: Job, progress: Progress) -> Encoder:
        """Run the plan; see :class:`Engine`."""
        return PolarsPlan(job, progress).run()


class PolarsPlan:
    """The plan of a job from the spool on; what differs on a GPU are the methods besides :meth:`run`.

    Parameters
    ----------
    collect:
        How a plan is run.
    """

    def __init__(self, job: Job, progress: Progress, collect: Collect = collect_streaming) -> None:
        self.job = job
        self.progress = progress
        self.collect = collect

    def run(self) -> Encoder:
        """Fit on the fitted rows, then encode all of them."""
        job, progress = self.job, self.progress
        schema, options = job.schema, job.options
        progress.start("fit", job.fitted_total)
        values = field_values(schema, options.encoding)
        vocabularies = VocabularyFolder(job.folder / VOCABULARY_FOLDER, values, job.memory // 4)
        passes = self.passes(values)
        counted_rows = 0
        for number, (name, value) in enumerate(values.items(), 1):
            # One field at a time: together they would share a scan, and rows that one has not got to would
            # wait in memory.
            vocabularies.add(name, build_vocabulary(self._count_in_parts(value, passes[name]), options))
            before, counted_rows = counted_rows, job.fitted_total * number // len(values)
            progress.advance(counted_rows - before)
        dense = fit_dense(job.fitted_rows, schema.dense, mode=options.dense_mode, collect=self.collect)
        encoder = Encoder(schema, options.encoding, dense, vocabularies)

        lookup = self.lookup(values, vocabularies)
        rows = with_folds(job.rows, options)
        encoder, out_of_fold = fit_targets(rows, encoder, lookup, collect=self.collect)
        progress.start("encode", job.total)
        keep = (SPLIT, LABEL)
        self.write(
            encoder.encode(rows, counts=options.counts, keep=keep, lookup=lookup, out_of_fold=out_of_fold)
        )
        return encoder

    def passes(self, values: Mapping[str, pl.Expr]) -> Mapping[str, int]:
        """Return in how many passes over the rows the values of each field are counted."""
        job = self.job
        return passes_to_count(job.fitted_rows, values, total=job.fitted_total, memory=job.memory)

    def _count_in_parts(self, value: pl.Expr, parts: int) -> Iterator[pl.DataFrame]:
        return count_in_parts(self.job.fitted_rows, value, parts, collect=self.collect)

    def lookup(self, values: Mapping[str, pl.Expr], vocabularies: VocabularyFolder) -> Lookup:
        """Return how values become ids."""
        return KnownIds(_encode_large_fields(self.job, values, vocabularies, self.progress))

    def write(self, encoded: pl.LazyFrame) -> None:
        """Write encoded rows, each to the part of its split."""
        self.job.write_parts(encoded, self.progress)


@dataclass(frozen=True)
class KnownIds(Lookup):
    """Some fields were looked up before: here are the expressions of their ids."""

    known: Mapping[str, pl.Expr]

    def ids(self, name: str, vocabularies: Mapping[str, Vocabulary], value: pl.Expr) -> pl.Expr:
        """Return them where they are known; see :class:`Lookup`."""
        return self.known[name] if name in self.known else super().ids(name, vocabularies, value)


def _encode_large_fields(
    job: Job, values: Mapping[str, pl.Expr], vocabularies: VocabularyFolder, progress: Progress
) -> dict[str, pl.Expr]:
    """Encode the fields whose values do not fit into memory with those of the others, each on its own.

    Returns
    -------
    dict
        For each such field the expression of its ids.
    """
    known = {}
    # A quarter is for vocabularies that are held; the tables of their counts are there all the time.
    memory = max(job.memory * 3 // 4 - vocabularies.table_bytes, job.memory // 4, 1)
    free = memory
    for name, needed in sorted(vocabularies.lookup_bytes.items(), key=lambda item: item[1]):
        free -= needed
        if free < 0:
            progress.start(f"encode {name}", job.total)
            parts = ceil(needed / memory)
            known[name] = _ids_of_rows(job, values[name], vocabularies[name], parts, progress)
    return known


def _ids_of_rows(job: Job, value: pl.Expr, vocabulary: Vocabulary, parts: int, progress: Progress) -> pl.Expr:
    """Write the ids of a field to an array on disk, by row; each pass looks up a part of its values."""
    with tempfile.NamedTemporaryFile(dir=job.scratch, suffix=".ids", delete=False) as file:
        # Now, where a full disk is an error: later it would be the end of the process.
        os.posix_fallocate(file.fileno(), 0, job.total * np.dtype(np.int32).itemsize)
        ids = np.memmap(file, dtype=np.int32, mode="w+", shape=job.total)  # of zeros: PADDING_ID

    def store(batch: pl.Series) -> pl.Series:
        rows, found = batch.struct.field(ROW).to_numpy(), batch.struct.field("id")
        known = found.is_not_null().to_numpy()
        ids[rows[known]] = found.drop_nulls().to_numpy()
        progress.advance(len(batch) // (parts + 1))
        return batch.struct.field(ROW)

    def run(rows: pl.LazyFrame, found: pl.Expr) -> None:
        batch = pl.struct(ROW, found.alias("id"))
        stored = batch.map_batches(store, return_dtype=pl.UInt64, is_elementwise=True)
        rows.select(stored.max()).collect(engine="streaming")
        ids.flush()  # else a container may run out of memory before the system has written it

    size = len(vocabulary.values)
    for part in range(parts):
        run(job.rows, vocabulary.known_ids(value, part * size // parts, (part + 1) * size // parts))
    before = Lookup().entries(pl.col(ROW), ids)
    run(job.rows, vocabulary.completed(value, pl.when(before != PADDING_ID).then(before)))
    return before
