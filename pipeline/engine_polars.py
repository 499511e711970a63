"""The engine ``polars``: lazy, streaming, on all cores, within a budget of memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

import numpy as np
import polars as pl

from stampede.pipeline.dataset import LABEL, PADDING_ID
from stampede.pipeline.dense import fit_dense
from stampede.pipeline.encode import Encoder, field_values
from stampede.pipeline.engine import Job
from stampede.pipeline.fit import VocabularyFolder, fit_targets, fit_vocabularies, with_folds
from stampede.pipeline.progress import Progress
from stampede.pipeline.split import SPLIT
from stampede.pipeline.spool import ROW
from stampede.pipeline.vocabulary import Lookup, Vocabulary


class PolarsEngine:
    """Runs the plan on Polars' streaming engine."""

    def check(self) -> None:
        """Do nothing: it runs everywhere."""

    def run(self, job: Job, progress: Progress) -> Encoder:
        """Fit on the fitted rows and write the part of every split; see :class:`Engine`."""
        schema, options = job.schema, job.options
        values = field_values(schema, options.encoding)
        vocabularies = fit_vocabularies(job, values, progress)
        dense = fit_dense(job.fitted_rows, schema.dense, mode=options.dense_mode)
        encoder = Encoder(schema, options.encoding, dense, vocabularies)

        lookup = KnownIds(_encode_large_fields(job, values, vocabularies, progress))
        rows = with_folds(job.rows, options)
        encoder, out_of_fold = fit_targets(rows, encoder, lookup)
        progress.start("encode", job.total)
        encoded = encoder.encode(
            rows, counts=options.counts, keep=(SPLIT, LABEL), lookup=lookup, out_of_fold=out_of_fold
        )
        job.write_parts(encoded, progress)
        return encoder


@dataclass(frozen=True)
class KnownIds(Lookup):
    """Some fields were looked up before: here are the expressions of their ids."""

    known: Mapping[str, pl.Expr]

    def ids(self, name: str, vocabulary: Vocabulary, value: pl.Expr) -> pl.Expr:
        """Return them where they are known; see :class:`Lookup`."""
        return self.known[name] if name in self.known else super().ids(name, vocabulary, value)


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
    free = memory = job.memory * 3 // 4  # the rest is for vocabularies that are held
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

    size = len(vocabulary.values)
    for part in range(parts):
        run(job.rows, vocabulary.known_ids(value, part * size // parts, (part + 1) * size // parts))
    before = Lookup().entries(pl.col(ROW), ids)
    run(job.rows, vocabulary.completed(value, pl.when(before != PADDING_ID).then(before)))
    return before
