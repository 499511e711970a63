"""``stampede synth``: a synthetic click log of a preset's shape."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from stampede import StampedeError
from stampede.pipeline.progress import Progress, Silent
from stampede.pipeline.synth import SynthResult, synthesise
from stampede.workflows.files import check_free


def run_synth(
    preset: Literal["criteo", "avazu"],
    *,
    rows: int,
    seed: int,
    out: Path,
    force: bool,
    progress: Progress | None = None,
) -> SynthResult:
    """Write a synthetic log.

    Raises
    ------
    StampedeError
        ``out`` exists and ``force`` is not set, or cannot be written.
    """
    progress = progress or Silent()
    check_free(out, force=force)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StampedeError(f"cannot write {out}: {error.strerror}") from error
    progress.start("synth", rows)
    return synthesise(preset, out, rows=rows, seed=seed, progress=progress.advance)
