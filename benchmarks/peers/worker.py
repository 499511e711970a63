"""A contender in a process of its own, which takes turns on the command of ``python -m benchmarks.peers``.

    python -m benchmarks.peers.worker FOLDER BATCH_SIZE MODULE CLASS VARIANT

A line of JSON on stdin is a command, one on stdout its answer.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.peers.task import AGREE_ROWS, Contender, Rows, Task, UnavailableError

WARMUP_SHARE = 0.15
"""Of the seconds of a turn, spent on steps that do not count, where a step is shorter than that."""


def main() -> None:
    """Answer commands until stdin ends."""
    folder, batch_size, module, name, variant = sys.argv[1:]
    # stdout is for answers: what the libraries print goes to stderr
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(values: dict[str, Any]) -> None:
        print(json.dumps(values), file=answers, flush=True)

    try:
        task = Task.load(Path(folder), int(batch_size))
        torch.set_num_threads(task.values.threads)
        torch.manual_seed(0)
        make = getattr(importlib.import_module(f"benchmarks.peers.{module}"), name)
        worker = Worker(make(task, variant), task, Path(folder))
    except UnavailableError as error:
        answer({"unavailable": str(error)})
        return
    answer({"updates": worker.contender.updates, "torch": torch.__version__, "loss": worker.first_loss})
    commands: dict[str, Callable[..., dict[str, Any]]] = {
        "turn": worker.turn,
        "memory": worker.memory,
        "epoch": worker.epoch,
    }
    for line in sys.stdin:
        command = json.loads(line)
        answer(commands[command.pop("do")](**command))


class Worker:
    """Runs one contender."""

    def __init__(self, contender: Contender, task: Task, folder: Path) -> None:
        self.contender = contender
        self.task = task
        self.folder = folder
        size = task.values.batch_size
        self.batches = [slice(start, start + size) for start in range(0, len(task.rows), size)]
        self.steps = 0
        self.last_seconds = 0.0
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew, from what there is now
        self.resident_before = _memory("VmRSS")
        contender.build()
        self.first_loss = self._loss(task.rows[:AGREE_ROWS])

    def turn(self, seconds: float) -> dict[str, Any]:
        """Step for so long; give the seconds of each step after the warm-up."""
        started = time.perf_counter()
        if self.last_seconds < WARMUP_SHARE * seconds:
            while time.perf_counter() - started < WARMUP_SHARE * seconds:
                self._step()
        times: list[float] = []
        while not times or time.perf_counter() - started < seconds:
            times.append(self._step())
        return {"seconds": times}

    def memory(self) -> dict[str, Any]:
        """Give the highest resident memory less what there was with the rows in memory, in bytes."""
        return {"bytes": _memory("VmHWM") - self.resident_before}

    def epoch(self) -> dict[str, Any]:
        """Train an epoch its users' way and score the test rows into a file."""
        scratch = self.folder / f"scratch_{os.getpid()}"
        scratch.mkdir()
        seconds = self.contender.fit(scratch)
        file = scratch / "scores.npy"
        np.save(file, self.contender.scores(Rows.load(self.folder, "test")))
        return {"seconds": seconds, "scores": str(file)}

    def _step(self) -> float:
        batch = self.batches[self.steps % len(self.batches)]
        started = time.perf_counter()
        self.contender.step(batch)
        self.last_seconds = time.perf_counter() - started
        self.steps += 1
        return self.last_seconds

    def _loss(self, rows: Rows) -> float:
        """Give the mean cross-entropy of some rows."""
        scores, clicked = self.contender.scores(rows), rows.labels == 1
        return float(-np.log(np.where(clicked, scores, 1 - scores)).mean())


def _memory(kind: str) -> int:
    """Return a figure of this process, in bytes: VmRSS now, VmHWM at its highest."""
    lines = Path("/proc/self/status").read_text().splitlines()
    figures = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return int(figures[kind].split()[0]) * 1024


if __name__ == "__main__":
    main()
