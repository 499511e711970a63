"""``stampede predict``: raw rows -> the run's scores, in order, a few blocks of rows in memory at a time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stampede import ConfigError
from stampede.pipeline.block_encode import EncodedBlock
from stampede.pipeline.progress import Progress, Silent
from stampede.pipeline.stream_encode import encode_stream
from stampede.training.batch import Batch
from stampede.training.config import Device
from stampede.training.evaluation import EVALUATION_BATCH, logits_of
from stampede.training.metrics import probabilities_of
from stampede.training.models import CTRModel
from stampede.workflows.files import check_free
from stampede.workflows.run import Run
from stampede.workflows.score_files import ClosedPipeError, ScoreWriter, score_file, standard_output

STDOUT = Path("-")

MOST_ENCODERS = 8

# A product of float32 may end in other digits where its rows begin between the processor's words.
ALIGNMENT = 64

Scores = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Predicted:
    """How many rows were scored, and in how many seconds."""

    rows: int
    seconds: float


def run_predict(
    run_path: Path,
    inputs: list[str],
    *,
    out: Path,
    force: bool,
    device: Device | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Predicted:
    """Score raw rows with the best epoch of a run.

    ``out`` (.csv or .parquet) gets one row per input row, in order, with the column ``score``: the
    probability of a click, float64. Values that training did not see have the id of unseen values. A label in
    the input is ignored, and may be missing. Memory does not grow with the input.

    Parameters
    ----------
    inputs:
        Files or glob patterns; ``-`` is standard input, as text.
    out:
        ``-`` is standard output: CSV, written as it comes. Where nobody reads on, the job ends early.

    Raises
    ------
    ConfigError
        ``out`` is none of these, or standard input is named twice.
    StampedeError
        ``out`` exists and ``force`` is not set, or it cannot be written.
    InputError
        A row that cannot be scored. No file is written then; on standard output are the scores of whole
        batches before it.
    """
    started = time.perf_counter()
    progress = progress or Silent()
    if out != STDOUT:
        if out.suffix not in (".csv", ".parquet"):
            raise ConfigError(
                f"--out {out}: the name must end in .csv or .parquet, or be - (standard output)"
            )
        check_free(out, force=force)
    progress.start("load", None)
    run = Run.open(run_path)
    place = run.use(device, threads)
    model = run.load_model(place)
    encoders = min(torch.get_num_threads(), MOST_ENCODERS)
    blocks = encode_stream(run.encoder, inputs, threads=encoders)
    with closing(blocks):
        progress.start("score", None)
        if out == STDOUT:
            with standard_output() as writer:
                rows = _score_all(blocks, model, place, writer, progress)
        else:
            with score_file(out) as writer:
                rows = _score_all(blocks, model, place, writer, progress)
    return Predicted(rows, time.perf_counter() - started)


def _score_all(
    blocks: Iterable[EncodedBlock],
    model: CTRModel,
    device: torch.device,
    writer: ScoreWriter,
    progress: Progress,
) -> int:
    """Write the scores of all blocks; return how many there are."""
    rows = 0
    for batch in batches_of(blocks, rows=EVALUATION_BATCH):
        scores = score(model, torch.from_numpy(batch.dense), torch.from_numpy(batch.ids), device=device)
        try:
            writer.write(scores)
        except ClosedPipeError:
            break
        rows += len(scores)
        progress.advance(len(scores))
    return rows


def score(model: CTRModel, dense: Tensor, ids: Tensor, *, device: torch.device) -> Scores:
    """Score one batch of encoded rows.

    Parameters
    ----------
    dense:
        float32 ``[B, n_dense]``.
    ids:
        int32 ``[B, F]``.

    Returns
    -------
    Scores
        The probability of a click, float64 ``[B]``. Its last digits may depend on B: a job that is to agree
        with ``stampede predict`` takes :data:`EVALUATION_BATCH` rows at a time.
    """
    if dense.data_ptr() % ALIGNMENT:
        dense = dense.clone()
    batch = Batch(dense, ids, torch.zeros(len(ids), dtype=torch.int8)).to(device)
    ((logits, _),) = logits_of(model, [batch])
    return probabilities_of(logits.float().cpu().numpy())


def batches_of(blocks: Iterable[EncodedBlock], *, rows: int) -> Iterator[EncodedBlock]:
    """Cut blocks of any size into batches of ``rows`` rows each, in order; the last one may be shorter."""
    parts: list[EncodedBlock] = []
    held = 0
    for block in blocks:
        start = 0
        while held + len(block) - start >= rows:
            stop = start + rows - held
            yield _joined([*parts, _slice(block, start, stop)])
            parts, held, start = [], 0, stop
        if start < len(block):
            parts.append(_slice(block, start, len(block)))
            held += len(block) - start
    if parts:
        yield _joined(parts)


def _slice(block: EncodedBlock, start: int, stop: int) -> EncodedBlock:
    return EncodedBlock(block.dense[start:stop], block.ids[start:stop])


def _joined(parts: list[EncodedBlock]) -> EncodedBlock:
    if len(parts) == 1:
        return parts[0]
    dense, ids = zip(*((part.dense, part.ids) for part in parts), strict=True)
    return EncodedBlock(np.concatenate(dense), np.concatenate(ids))
