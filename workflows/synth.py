"""``stampede synth``: a synthetic click log of a preset's shape."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from stampede.pipeline.progress import Progress, Silent
from stampede.pipeline.synth import SynthResult, synthesise
from stampede.workflows.files import check_free, make_parent


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
    make_parent(out)
    progress.start("synth", rows)
    return synthesise(preset, out, rows=rows, seed=seed, progress=progress.advance)
