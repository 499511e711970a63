"""From a run to a checked file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch

from stampede import ConfigError, StampedeError, __version__
from stampede.pipeline.dataset import UNSEEN_ID
from stampede.pipeline.progress import Progress, Silent
from stampede.workflows.export.check import Agreement, compare, rows_to_check
from stampede.workflows.export.formats import (
    DATA_SUFFIX,
    Metadata,
    onnx_scores,
    require_onnx,
    torch_scores,
    write_onnx,
    write_torch,
)
from stampede.workflows.export.graph import traced
from stampede.workflows.files import check_free, working_folder
from stampede.workflows.model_version import ModelVersion, load_best_model
from stampede.workflows.run import Run

ExportFormat = Literal["onnx", "torch"]

SUFFIXES: dict[str, ExportFormat] = {".onnx": "onnx", ".pt2": "torch"}


@dataclass(frozen=True)
class Exported:
    """What was written, and how far its scores are from the run's at most.

    Attributes
    ----------
    data:
        The file beside it with the weights; None where the file itself holds them.
    bytes:
        Of both.
    """

    out: Path
    format: ExportFormat
    data: Path | None
    bytes: int
    agreement: Agreement


def run_export(
    run_path: Path,
    *,
    out: Path,
    force: bool,
    format: ExportFormat | None = None,
    progress: Progress | None = None,
) -> Exported:
    """Write the best epoch of a run as one graph, from encoded rows to scores, and check it.

    The graph has the inputs ``dense`` (float32 [B, n_dense]; left out for a model without dense features) and
    ``ids`` (int64 [B, F]) and the output ``score`` (float32 [B], the probability of a click), for any B. An
    id that its field does not have is read as the id of unseen values. Names and sizes of the fields are in
    its metadata.

    Parameters
    ----------
    format:
        None takes it from the name of ``out``: .onnx or .pt2.

    Raises
    ------
    ConfigError
        The format is not given and the name does not tell it.
    StampedeError
        A package is missing, ``out`` exists without ``force`` or cannot be written, or the scores of what was
        exported differ from the run's by more than 1e-5; nothing is written then.
    """
    chosen = format or SUFFIXES.get(out.suffix)
    if chosen is None:
        raise ConfigError(f"--out {out}: the name must end in .onnx or .pt2, or give --format")
    if chosen not in get_args(ExportFormat):
        raise ConfigError(f"--format {chosen}: choose onnx or torch")
    if chosen == "onnx":
        require_onnx()
    data = out.with_name(out.name + DATA_SUFFIX)
    check_free(out, force=force)
    if chosen == "onnx":
        check_free(data, force=force)
    progress = progress or Silent()
    run = Run.open(run_path)
    model, version = load_best_model(run, torch.device("cpu"))
    encoder = run.encoder
    progress.start("trace", None)
    with working_folder(out) as folder:
        file = folder / out.name
        program = traced(model, n_dense=len(encoder.dense_columns))
        progress.start("write", None)
        _write(chosen, program, file, _metadata(run, version))
        progress.start("check", None)
        score = onnx_scores(file) if chosen == "onnx" else torch_scores(file)
        agreement = compare(model, score, rows_to_check(run))
        written = folder / data.name
        with_data = written.exists()
        size = file.stat().st_size + (written.stat().st_size if with_data else 0)
        if with_data:
            written.replace(data)
        file.replace(out)
        if chosen == "onnx" and not with_data:
            data.unlink(missing_ok=True)  # of an earlier export that --force replaces
    return Exported(out, chosen, data if with_data else None, size, agreement)


def _write(format: ExportFormat, program: torch.export.ExportedProgram, file: Path, data: Metadata) -> None:
    try:
        (write_onnx if format == "onnx" else write_torch)(program, file, data)
    except (RuntimeError, torch.onnx.OnnxExporterError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise StampedeError(f"the model cannot be written as {file.name}: {reason}") from error


def _metadata(run: Run, version: ModelVersion) -> Metadata:
    """Return what a user of the file must know to feed it."""
    vocabularies = run.encoder.vocabularies
    return {
        "version": __version__,
        "run": version.run,
        "step": version.step,
        "fingerprint": version.fingerprint,
        "model": run.config.model,
        "dense": list(run.encoder.dense_columns),
        "fields": list(vocabularies),
        "sizes": [vocabulary.size for vocabulary in vocabularies.values()],
        "unseen_id": UNSEEN_ID,
    }
