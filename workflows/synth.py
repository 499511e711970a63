"""``stampede synth``: a synthetic click log of a preset's shape, or one for each of several days."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stampede import ConfigError
from stampede.pipeline.progress import Progress, Silent
from stampede.pipeline.synth import SynthResult, synthesise
from stampede.pipeline.synth.drift import Day
from stampede.pipeline.synth.generate import ENDINGS
from stampede.workflows.files import check_free, make_parent

DAY = "{day}"
DAY_DIGITS = 2


@dataclass(frozen=True)
class SynthDays:
    """The files of some days, their rows and bytes together, wall time in seconds."""

    files: tuple[Path, ...]
    rows: int
    bytes: int
    seconds: float


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


def run_synth_days(
    preset: Literal["criteo", "avazu"],
    *,
    days: int,
    first_day: int,
    drift: float,
    rows: int,
    seed: int,
    out: Path,
    force: bool,
    progress: Progress | None = None,
) -> SynthDays:
    """Write the logs of some days of a world that drifts, a file a day; each appears whole or not at all.

    Parameters
    ----------
    days, first_day:
        How many days, from which number on: a day is the same whichever others are written.
    drift:
        How fast the world changes; see :mod:`stampede.pipeline.synth.drift`.
    rows:
        Of each day.
    out:
        A folder, which gets ``day_01.tsv`` and so on, or the name of a file with ``{day}`` in it.

    Raises
    ------
    ConfigError
        There are no such days, or the preset has none.
    StampedeError
        A file exists and ``force`` is not set, or cannot be written.
    """
    progress = progress or Silent()
    if days < 1:
        raise ConfigError(f"--days {days}: it must be 1 or more")
    numbers = range(first_day, first_day + days)
    each = [Day(number, drift) for number in numbers]
    pattern = out if DAY in out.name else out / f"day_{DAY}.tsv"
    if DAY in str(pattern.parent) or out.is_file() or (out.suffix.lower() in ENDINGS and DAY not in out.name):
        raise ConfigError(f"--out {out}: with --days name a folder, or a file with {DAY} in its name")
    digits = max(DAY_DIGITS, len(str(numbers[-1])))
    files = [pattern.with_name(pattern.name.replace(DAY, f"{number:0{digits}}")) for number in numbers]
    for file in files:
        check_free(file, force=force)
    make_parent(pattern)
    progress.start("synth", rows * days)
    results = [
        synthesise(preset, file, rows=rows, seed=seed, day=day, progress=progress.advance)
        for file, day in zip(files, each, strict=True)
    ]
    return SynthDays(
        files=tuple(files),
        rows=sum(result.rows for result in results),
        bytes=sum(result.bytes for result in results),
        seconds=sum(result.seconds for result in results),
    )
