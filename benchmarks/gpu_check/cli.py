"""The ``stampede`` command, as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.environment import NEEDED
from benchmarks.gpu_check.standins import is_importable


def stampede(*words: object) -> dict[str, Any]:
    """Run a command; give its JSON document and, as ``wall_seconds``, the time from start to end.

    Raises
    ------
    RuntimeError
        It failed; has its last lines.
    """
    command = [sys.executable, "-m", "stampede", *(str(word) for word in words), "--json", "--debug"]
    started = time.perf_counter()
    ended = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    seconds = time.perf_counter() - started
    if ended.returncode:
        raise RuntimeError(f"stampede {words[0]} ended with {ended.returncode}: {ended.stderr[-2500:]}")
    document: dict[str, Any] = json.loads(ended.stdout)
    return document | {"wall_seconds": seconds}


def make_log(folder: Path, *, rows: int) -> Path:
    """Give a synthetic Criteo log, made on the first call."""
    log = folder / f"criteo-{rows}.txt"
    if not log.exists():
        stampede("synth", "criteo", "--rows", rows, "--out", log)
    return log


def packages_missing() -> str | None:
    """Say what the command needs and is not here, in a line."""
    absent = [name for name in NEEDED if not is_importable(name)]
    return f"not installed: {', '.join(absent)}" if absent else None
