"""The engine ``polars``: lazy, streaming, on all cores."""

from __future__ import annotations

from stampede.pipeline.dataset import LABEL
from stampede.pipeline.dense import fit_dense
from stampede.pipeline.encode import Encoder, field_values
from stampede.pipeline.engine import Job
from stampede.pipeline.progress import Progress
from stampede.pipeline.vocabulary import Vocabulary, count_values


class PolarsEngine:
    """Runs the plan on Polars' streaming engine."""

    def check(self) -> None:
        """Do nothing: it runs everywhere."""

    def run(self, job: Job, progress: Progress) -> Encoder:
        """Fit on the fitted rows and write the part of every split; see :class:`Engine`."""
        progress.start("fit", None)
        encoder = _fit(job)
        progress.start("encode", job.total)
        for split in job.sizes:
            encoded = encoder.encode(job.rows_of(split), counts=job.options.counts, keep=(LABEL,))
            job.write_part(split, encoded, progress)
        return encoder


def _fit(job: Job) -> Encoder:
    schema, options = job.schema, job.options
    counted = count_values(job.fitted_rows, field_values(schema, options.dense_mode))
    vocabularies = {
        name: Vocabulary.build(
            frame,
            min_count=options.min_count,
            max_size=options.max_size,
            hash_buckets=options.hash_buckets,
        )
        for name, frame in counted.items()
    }
    dense = fit_dense(job.fitted_rows, schema.dense, mode=options.dense_mode)
    return Encoder(schema, options.dense_mode, options.dense_null_flag, dense, vocabularies)
