"""``stampede transform``: raw rows -> ids and dense features, by the encoder of a dataset or a run."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from stampede import ConfigError
from stampede.pipeline import Dataset, Encoder
from stampede.pipeline.dataset import MANIFEST
from stampede.pipeline.progress import Progress
from stampede.pipeline.transform import transform
from stampede.workflows.files import check_free, working_folder
from stampede.workflows.run import Run


@dataclass(frozen=True)
class Transformed:
    """How many rows were encoded, and in how many seconds."""

    rows: int
    seconds: float


def run_transform(
    run_or_dataset: Path,
    inputs: list[str],
    *,
    out: Path,
    counts: bool,
    force: bool,
    progress: Progress | None = None,
) -> Transformed:
    """Encode raw rows into one parquet file with the columns of the dataset's parts.

    Raises
    ------
    ConfigError
        ``out`` is not .parquet.
    StampedeError
        It exists without ``force`` or cannot be written, or the input cannot be used.
    """
    started = time.perf_counter()
    if out.suffix != ".parquet":
        raise ConfigError(f"--out {out}: the name must end in .parquet")
    check_free(out, force=force)
    encoder = _encoder_of(run_or_dataset)
    with working_folder(out) as folder:
        encoded = transform(encoder, inputs, folder, counts=counts, keep_label=True, progress=progress)
        encoded.file.replace(out)
    return Transformed(encoded.rows, time.perf_counter() - started)


def _encoder_of(path: Path) -> Encoder:
    if (path / MANIFEST).is_file():
        return Encoder.of_dataset(Dataset.open(path))
    return Run.open(path).encoder
