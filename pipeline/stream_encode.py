"""Raw rows -> model inputs, block by block in memory: the same as :mod:`stampede.pipeline.transform` gives.

Text is read by a kernel that turns most rows into numbers and ids in one pass over their bytes. Rows that it
leaves, and logs that it does not know, go the way of :mod:`stampede.pipeline.rows` and
:mod:`stampede.pipeline.encode`, which define the result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from pathlib import Path

from stampede import ConfigError, InputError
from stampede.pipeline.block_encode import BlockEncoder, EncodedBlock
from stampede.pipeline.encode import Encoder
from stampede.pipeline.in_order import in_order
from stampede.pipeline.parquet_rows import ParquetRows
from stampede.pipeline.sources import Source, describe, resolve_inputs
from stampede.pipeline.spool import changed, state_of
from stampede.pipeline.text_blocks import BLOCK_BYTES, blocks_of_file, standard_input
from stampede.pipeline.text_rows import TextRows

STDIN = "-"

Work = Callable[[], EncodedBlock]


def encode_stream(
    encoder: Encoder, inputs: Sequence[str | Path], *, threads: int, block_bytes: int = BLOCK_BYTES
) -> Generator[EncodedBlock, None, None]:
    """Encode raw rows with a fitted encoder, in order, a few blocks in memory at a time.

    Labels are ignored, and may be missing.

    Parameters
    ----------
    inputs:
        Files or glob patterns of the encoder's log, read as one; ``-`` is standard input, as text.
    threads:
        How many blocks are encoded at once, besides a thread that reads.
    block_bytes:
        Size of a block of text.

    Raises
    ------
    ConfigError
        Standard input is named twice.
    InputError, SchemaError
        A file that cannot be read, or a row that cannot be encoded; the message names file and line.
    """
    if [str(name) for name in inputs].count(STDIN) > 1:
        raise ConfigError(f"standard input ({STDIN}) can be read once: name it once")
    files: list[Path | None] = []
    for name in inputs:
        files += [None] if str(name) == STDIN else resolve_inputs([name])
    if not files:
        resolve_inputs([])
    described = [
        None if file is None else (state_of(file), describe(file, encoder.schema, label="optional"))
        for file in files
    ]
    stop = threading.Event()
    blocks = BlockEncoder(encoder)

    def work() -> Iterator[Work]:
        for file in described:
            if file is None:
                source, texts = standard_input(encoder.schema, stop, size=block_bytes)
                reader = TextRows(source, encoder.schema)
                yield from (partial(blocks.of_text, text, reader) for text in texts)
            else:
                yield from _work_of_file(*file, blocks, block_bytes)

    return in_order(lambda encode: encode(), work(), threads=threads, stop=stop)


def _work_of_file(
    before: tuple[int, ...], source: Source, blocks: BlockEncoder, block_bytes: int
) -> Iterator[Work]:
    """Yield what encodes each block of a file.

    Raises
    ------
    InputError
        It cannot be read, or changed meanwhile.
    """
    path, schema = source.path, blocks.encoder.schema

    def checked(encode: Work) -> EncodedBlock:
        try:
            return encode()
        except InputError as error:
            if state_of(path) != before:
                raise changed(path) from error
            raise

    try:
        if source.format == "parquet":
            rows = ParquetRows.of(source, schema)
            for block in rows.blocks():
                yield partial(checked, partial(blocks.of_parquet, block, rows))
        else:
            reader = TextRows(source, schema)
            for text in blocks_of_file(source, size=block_bytes):
                yield partial(checked, partial(blocks.of_text, text, reader))
    except InputError as error:
        if state_of(path) != before:
            raise changed(path) from error
        raise
    if state_of(path) != before:
        raise changed(path)
