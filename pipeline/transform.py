"""Raw rows -> encoded rows by a fitted encoder: what serving sees is what training saw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stampede.pipeline.dataset import LABEL
from stampede.pipeline.encode import Encoder
from stampede.pipeline.progress import Progress, Silent
from stampede.pipeline.sources import describe, resolve_inputs
from stampede.pipeline.spool import write_spool


@dataclass(frozen=True)
class EncodedRows:
    """A parquet file of encoded rows, in the order of the input, and their number."""

    file: Path
    rows: int


def transform(
    encoder: Encoder,
    inputs: Sequence[str | Path],
    folder: Path,
    *,
    counts: bool = False,
    keep_label: bool = False,
    progress: Progress | None = None,
) -> EncodedRows:
    """Encode raw files with a fitted encoder; every row of the input gives one row, in order.

    Parameters
    ----------
    inputs:
        Files or glob patterns of the encoder's log, read as one.
    folder:
        Where the result and what is needed on the way are written.
    counts:
        Whether each id is followed by how often it occurred among the fitted rows.
    keep_label:
        Whether labels are read and handed on where every input has them; else they are ignored.

    Raises
    ------
    InputError, SchemaError
        A file that cannot be read, or a row that cannot be encoded; the message names file and line.
    """
    progress = progress or Silent()
    files = resolve_inputs(inputs)
    schema = encoder.schema
    with_label = keep_label and all(
        schema.label in describe(file, schema, label="optional").columns for file in files
    )
    progress.start("read", None)
    spool = write_spool(files, schema, folder / "spool", with_label=with_label, on_rows=progress.advance)
    progress.start("encode", spool.rows)
    result = folder / "encoded.parquet"
    keep = (LABEL,) if with_label else ()
    encoder.encode(spool.scan(), counts=counts, keep=keep).sink_parquet(result, compression="zstd")
    return EncodedRows(result, spool.rows)
