"""What a preparation will take, from a sample of its input and without writing anything."""

from __future__ import annotations

import io
import math
import shutil
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import polars as pl
import zstandard

from stampede.pipeline.dataset import LABEL
from stampede.pipeline.dense import fit_dense
from stampede.pipeline.encode import Encoder, check_columns, field_values
from stampede.pipeline.fit import build_vocabulary
from stampede.pipeline.memory import (
    BYTES_PER_COUNTED_VALUE,
    BYTES_PER_ENCODED_VALUE,
    fixed_memory,
    working_memory,
)
from stampede.pipeline.options import PrepareOptions
from stampede.pipeline.plan import no_rows_error
from stampede.pipeline.rawtext import GZIP_MAGIC, ZSTD_MAGIC
from stampede.pipeline.schema import Schema
from stampede.pipeline.sources import describe, resolve_inputs
from stampede.pipeline.spool import ROW, sample_rows
from stampede.pipeline.vocabulary import Vocabulary, count_plan

SAMPLED_ROWS = 100_000
SAMPLED_BYTES = 4 << 20
BYTES_PER_STORED_ID = 12
PLACES = 4  # of a plain file where its lines are measured


@dataclass(frozen=True)
class Estimate:
    """What a preparation will take; only the bytes of the input and the free disk are exact.

    Attributes
    ----------
    rows:
        Rows of all inputs, those that may be left out too.
    input_bytes:
        Of all inputs, as they are.
    spool_bytes, dataset_bytes:
        What is written: the spool is removed at the end.
    free_bytes:
        Of the disk that the dataset goes to.
    memory_bytes, memory_limit_bytes:
        Memory at the peak, and what it is held to by taking large vocabularies in parts.
    ids:
        Number of ids of each field.
    """

    rows: int
    input_bytes: int
    spool_bytes: int
    dataset_bytes: int
    free_bytes: int
    memory_bytes: int
    memory_limit_bytes: int
    ids: Mapping[str, int]

    @property
    def disk_bytes(self) -> int:
        """Bytes on disk at the peak."""
        return self.spool_bytes + self.dataset_bytes

    @property
    def fits(self) -> bool:
        """Whether the disk has room."""
        return self.disk_bytes <= self.free_bytes


def estimate(
    schema: Schema,
    inputs: Sequence[str | Path],
    out: str | Path,
    *,
    options: PrepareOptions | None = None,
    memory: int | None = None,
) -> Estimate:
    """Estimate what :func:`stampede.pipeline.prepare` will take with the same arguments.

    Raises
    ------
    InputError, SchemaError, ConfigError
        As it does, of the rows that are looked at.
    """
    options = options or PrepareOptions()
    check_columns(schema, options.encoding)
    working = working_memory(memory)
    files = resolve_inputs(inputs)
    sample = sample_rows(files, schema, rows=SAMPLED_ROWS, bad_rows=options.bad_rows)
    if sample.is_empty():
        raise no_rows_error(files, pl.DataFrame())
    rows = max(sum(_rows_of(file, schema) for file in files), sample.height)
    scale = rows / max(sample.height, 1)

    values = field_values(schema, options.encoding)
    vocabularies = _fit(sample, values, options)
    halves = _fit(sample.head(sample.height // 2), values, options)
    held_out = options.split.valid_fraction + options.split.test_fraction
    fitted = 1 - held_out if options.fit_on == "train" else 1.0
    ids, vocabulary_bytes, lookup_bytes, distinct = {}, 0, 0, 0
    for name, vocabulary in vocabularies.items():
        sampled = len(vocabulary.values)
        kept = _grown(len(halves[name].values), sampled, scale * fitted)
        text_bytes = vocabulary.text_bytes // max(sampled, 1)
        ids[name] = vocabulary.size - sampled + kept
        vocabulary_bytes += ids[name] * (text_bytes + BYTES_PER_STORED_ID)
        lookup_bytes += kept * (BYTES_PER_ENCODED_VALUE + text_bytes)
        distinct = max(distinct, kept)
    working_bytes = max(lookup_bytes, distinct * BYTES_PER_COUNTED_VALUE)

    dense = fit_dense(sample.lazy(), schema.dense, mode=options.dense_mode)
    encoding = options.encoding.model_copy(update={"target_encoded": ()})  # of no weight
    encoder = Encoder(schema, encoding, dense, vocabularies)
    encoded = encoder.encode(sample.lazy(), counts=options.counts, keep=(LABEL,)).collect()
    return Estimate(
        rows=rows,
        input_bytes=sum(file.stat().st_size for file in files),
        spool_bytes=int(_parquet_bytes(sample.with_row_index(ROW), "lz4") * scale),
        dataset_bytes=int(_parquet_bytes(encoded, "zstd") * scale) + vocabulary_bytes,
        free_bytes=_free_bytes(Path(out)),
        memory_bytes=fixed_memory() + min(working_bytes, working),
        memory_limit_bytes=fixed_memory() + working,
        ids=ids,
    )


def _fit(
    sample: pl.DataFrame, values: Mapping[str, pl.Expr], options: PrepareOptions
) -> dict[str, Vocabulary]:
    return {
        name: build_vocabulary([count_plan(sample.lazy(), value).collect()], options)
        for name, value in values.items()
    }


def _grown(half: int, whole: int, scale: float) -> int:
    """Return how many values ``scale`` times the rows have: vocabularies grow by a power of the rows."""
    exponent = math.log2(whole / half) if 0 < half < whole else 0.0
    return int(whole * math.pow(scale, min(exponent, 1.0)))


def _rows_of(file: Path, schema: Schema) -> int:
    """Return the number of rows of a file: counted in parquet, else from the length of some lines."""
    if describe(file, schema).format == "parquet":
        return int(pl.scan_parquet(file, glob=False).select(pl.len()).collect().item())
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(SAMPLED_BYTES)
        text, ends = _unpacked(start)
        if len(start) == size:
            return ends
        if text == len(start):
            each = SAMPLED_BYTES // PLACES
            ends = 0
            for place in range(PLACES):
                stream.seek(size * place // PLACES)
                ends += stream.read(each).count(b"\n")
            return round(size * ends / (each * PLACES))
    return round(size / len(start) * ends)


def _unpacked(start: bytes) -> tuple[int, int]:
    """Return how many bytes of text the start of a file holds, and how many line ends."""
    if not start.startswith((GZIP_MAGIC, ZSTD_MAGIC)):
        return len(start), _lines(start)
    size = ends = 0
    while start:  # an archive may have many members
        if start.startswith(GZIP_MAGIC):
            member: Any = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        else:
            member = zstandard.ZstdDecompressor().decompressobj()
        text = member.decompress(start)
        size, ends = size + len(text), ends + text.count(b"\n")
        start = member.unused_data
    return size, ends


def _lines(text: bytes) -> int:
    return text.count(b"\n") + (not text.endswith(b"\n") and bool(text))


def _parquet_bytes(frame: pl.DataFrame, compression: Literal["lz4", "zstd"]) -> int:
    buffer = io.BytesIO()
    frame.write_parquet(buffer, compression=compression)
    return buffer.tell()


def _free_bytes(out: Path) -> int:
    """Return the free bytes of the disk that a folder will be on."""
    place = out.absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free
