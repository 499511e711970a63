"""``stampede predict``: raw rows -> the run's scores, in order."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
import torch

from stampede import ConfigError
from stampede.pipeline.encode import Encoder
from stampede.pipeline.progress import Progress, Silent
from stampede.pipeline.transform import EncodedRows, transform
from stampede.training.batch import batch_of
from stampede.training.config import Device
from stampede.training.evaluation import EVALUATION_BATCH, logits_of
from stampede.training.metrics import probabilities_of
from stampede.training.models import CTRModel
from stampede.workflows.files import check_free, working_folder
from stampede.workflows.run import Run

ROWS_PER_READ = 1 << 18

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
    the input is ignored, and may be missing.

    Raises
    ------
    ConfigError
        ``out`` is neither .csv nor .parquet, or exists without ``force``.
    InputError
        A row that cannot be scored; nothing is written then.
    """
    started = time.perf_counter()
    progress = progress or Silent()
    if out.suffix not in (".csv", ".parquet"):
        raise ConfigError(f"--out {out}: the name must end in .csv or .parquet")
    check_free(out, force=force)
    run = Run.open(run_path)
    place = run.use(device, threads)
    model = run.load_model(place)
    with working_folder(out) as folder:
        encoded = transform(run.encoder, inputs, folder, progress=progress)
        progress.start("score", encoded.rows)
        frame = pl.DataFrame({"score": _score(encoded, run.encoder, model, place, progress)})
        result = folder / f"scores{out.suffix}"
        if out.suffix == ".csv":
            frame.write_csv(result)
        else:
            frame.write_parquet(result)
        result.replace(out)
    return Predicted(encoded.rows, time.perf_counter() - started)


def _score(
    encoded: EncodedRows, encoder: Encoder, model: CTRModel, device: torch.device, progress: Progress
) -> Scores:
    """Score encoded rows in order, a few row groups in memory at a time; float64 [rows]."""
    scores = np.empty(encoded.rows, np.float64)
    done = 0
    for start in range(0, encoded.rows, ROWS_PER_READ):
        frame = pl.scan_parquet(encoded.file, glob=False).slice(start, ROWS_PER_READ).collect()
        read = batch_of(frame, dense_columns=encoder.dense_columns, fields=list(encoder.vocabularies))
        for logits, batch in logits_of(model, read.to(device).split(EVALUATION_BATCH)):
            scores[done : done + len(batch)] = probabilities_of(logits.float().cpu().numpy())
            done += len(batch)
            progress.advance(len(batch))
    return scores
