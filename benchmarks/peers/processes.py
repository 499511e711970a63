"""The contenders by name, and the processes that they run in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from benchmarks.peers.task import Task

ROOT = Path(__file__).parents[2]
PEERS_PYTHON = ROOT / ".venv-peers/bin/python"
LOSS_TOLERANCE = 1e-5
THREAD_LIMITS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "POLARS_MAX_THREADS")


@dataclass(frozen=True)
class Entry:
    """Where a contender is: module, class and variant, and whether it lives in the peers' environment."""

    module: str
    name: str
    variant: str
    is_peer: bool = False


CONTENDERS = {
    "stampede": Entry("ours", "Ours", "dense"),
    "stampede-bf16": Entry("ours", "Ours", "bf16"),
    "stampede-touched": Entry("ours", "Ours", "touched"),
    "torch-sparse": Entry("plain_torch", "PlainTorch", "sparse"),
    "torch-fused": Entry("plain_torch", "PlainTorch", "fused"),
    "torch-fields": Entry("plain_torch", "PlainTorch", "fields"),
    "deepctr-torch": Entry("deepctr", "DeepCTR", "fused", is_peer=True),
    "fuxictr": Entry("fuxi", "Fuxi", "fused", is_peer=True),
    "deepctr-torch-default": Entry("deepctr", "DeepCTR", "default", is_peer=True),
    "fuxictr-default": Entry("fuxi", "Fuxi", "default", is_peer=True),
}


class Worker:
    """A contender in its process (:mod:`benchmarks.peers.worker`).

    Attributes
    ----------
    unavailable:
        Why there is none, if so.
    updates, torch, loss:
        The rows that a step updates, the version of torch, the loss before any training.
    """

    def __init__(self, name: str, process: subprocess.Popen[str], errors: IO[bytes]) -> None:
        self.name = name
        self._process = process
        self._errors = errors
        greeting = self._answer()
        self.unavailable: str | None = greeting.get("unavailable")
        self.updates: str = greeting.get("updates", "")
        self.torch: str = greeting.get("torch", "")
        self.loss: float = greeting.get("loss", 0.0)

    def ask(self, **command: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        assert self._process.stdin is not None
        print(json.dumps(command), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            sys.exit(f"{self.name} ended with {self._process.wait()}: {self._errors.read().decode()[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def started(folder: Path, names: Sequence[str], task: Task, *, peers_python: Path) -> Iterator[list[Worker]]:
    """Give the workers of a task, those that there can be; stop unless they start from the same loss.

    The rows of the task lie in the folder already.
    """
    task.save(folder)
    environment = {**os.environ, **dict.fromkeys(THREAD_LIMITS, str(task.values.threads))}
    with ExitStack() as stack:
        workers: list[Worker] = []
        for name in names:
            entry = CONTENDERS[name]
            words = [
                peers_python if entry.is_peer else sys.executable,
                *("-m", "benchmarks.peers.worker", folder, task.values.batch_size),
                *(entry.module, entry.name, entry.variant),
            ]
            errors = stack.enter_context(tempfile.TemporaryFile())
            process = stack.enter_context(
                subprocess.Popen(
                    [str(word) for word in words],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    cwd=ROOT,
                    env=environment,
                )
            )
            stack.callback(process.kill)  # before the exit of its context, which waits for it
            worker = Worker(name, process, errors)
            if worker.unavailable is None:
                workers.append(worker)
            else:
                print(f"left out: {name}: {worker.unavailable}", flush=True)
        for worker in workers[1:]:
            if abs(worker.loss - workers[0].loss) > LOSS_TOLERANCE * workers[0].loss:
                sys.exit(
                    f"{worker.name} and {workers[0].name} begin with other losses, "
                    f"{worker.loss} and {workers[0].loss}: they are not the same model"
                )
        yield workers
