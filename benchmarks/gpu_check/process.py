"""A section in processes of its own, which may crash, hang or lose the GPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.options import Options
from benchmarks.gpu_check.record import append, read

LOST_DEVICE = 3
"""Exit code of a worker whose GPU answers nothing but errors any more: a new process may go on."""

SECONDS_BETWEEN_LOOKS = 0.1
LAST_LINES = 15


def run_section(
    name: str, options: Options, *, folder: Path, limit: float, part_limit: float
) -> dict[str, Any]:
    """Run a section until it has ended or its time is over.

    A part that crashes its process, or outlives ``part_limit``, is recorded as failed and the others go on
    in a new process.
    """
    record, errors = folder / f"{name}.jsonl", folder / f"{name}.stderr"
    started = time.monotonic()
    deadline = started + limit
    error = None
    while True:
        finished = len(_finished(record))
        code, over = _run_worker(
            name, options, record=record, errors=errors, deadline=deadline, part_limit=part_limit
        )
        if code == 0:
            break
        running = [part for part, values in read(record)[0].items() if values["state"] == "running"]
        what = over or f"the process ended with {_code(code)}: {last_lines(errors)}"
        for part in running:
            append(record, part=part, state="failed", error=what)
        if time.monotonic() >= deadline:
            error = f"stopped after {limit:g} s"
            break
        if len(_finished(record)) == finished:  # it got nowhere, and would again
            error = what
            break
    parts, reason = read(record)
    failed = error is not None or any(values["state"] == "failed" for values in parts.values())
    state = "failed" if failed else "left out" if reason is not None else "ok"
    return {
        "state": state,
        "seconds": time.monotonic() - started,
        "error": error,
        "reason": reason,
        "parts": parts,
    }


def last_lines(file: Path) -> str:
    """Give the end of a text."""
    return "\n".join(file.read_text(errors="replace").splitlines()[-LAST_LINES:]) if file.exists() else ""


def _finished(record: Path) -> list[str]:
    return [part for part, values in read(record)[0].items() if values["state"] != "running"]


def _run_worker(
    name: str, options: Options, *, record: Path, errors: Path, deadline: float, part_limit: float
) -> tuple[int, str | None]:
    """Run a worker; give its exit code and, where it was stopped, what it outlived."""
    words = [name, record, deadline, options.to_json()]
    with errors.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu_check.worker", *(str(word) for word in words)],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            cwd=record.parent,
            start_new_session=True,  # so that it can be stopped with what it started
        )
        part, since = None, time.monotonic()
        try:
            while process.poll() is None:
                now = time.monotonic()
                current = [p for p, values in read(record)[0].items() if values["state"] == "running"]
                if current != part:
                    part, since = current, now
                if now >= deadline:
                    return -signal.SIGKILL, "the section's time was over"
                if now - since > part_limit:
                    return -signal.SIGKILL, f"no end after {part_limit:g} s"
                time.sleep(SECONDS_BETWEEN_LOOKS)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode, None


def _code(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else str(code)
