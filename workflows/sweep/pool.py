"""Runs side by side: one process each, so many at a time, each on its device."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stampede.workflows.sweep.worker import Job

SECONDS_TO_STOP = 600.0
"""What a run has to save its state; a second interrupt ends it at once."""

WORKER = "from stampede.workflows.sweep.worker import main; main()"


@dataclass(frozen=True)
class Slot:
    """A place where one run at a time goes: environment variables that name its device and threads."""

    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Event:
    """What a worker said: rows that it trained, or the outcome with which it ended."""

    name: str
    rows: int = 0
    outcome: dict[str, Any] | None = None


class Pool:
    """Does named jobs on slots; iterate :meth:`events` and keep what they say.

    Where the iteration is left by an exception (Ctrl-C), all workers are asked to stop and waited for.

    Parameters
    ----------
    jobs:
        Name -> job, in the order in which they begin.
    slots:
        How many go side by side, and where.
    log:
        Name -> the file that gets what the worker writes to stderr.
    """

    def __init__(self, jobs: Mapping[str, Job], slots: Sequence[Slot], *, log: Callable[[str], Path]) -> None:
        self._waiting: queue.SimpleQueue[tuple[str, Job]] = queue.SimpleQueue()
        for job in jobs.items():
            self._waiting.put(job)
        self._left = len(jobs)
        self._log = log
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._stopping = False
        self._threads = [
            threading.Thread(target=self._work, args=(slot,), daemon=True) for slot in slots[: len(jobs)]
        ]

    def events(self) -> Iterator[Event]:
        """Yield what the workers say until all jobs are done."""
        for thread in self._threads:
            thread.start()
        try:
            while self._left:
                event = self._events.get()
                self._left -= event.outcome is not None
                yield event
        finally:
            self._stop()

    def _work(self, slot: Slot) -> None:
        while True:
            try:
                name, job = self._waiting.get_nowait()
            except queue.Empty:
                return
            try:
                outcome = self._do(name, job, slot)
            except OSError as error:
                outcome = {"status": "failed", "reason": f"cannot start a process: {error.strerror}"}
            if self._stopping:
                return
            self._events.put(Event(name, outcome=outcome))

    def _do(self, name: str, job: Job, slot: Slot) -> dict[str, Any]:
        """Do one job; return the values of its outcome."""
        with self._log(name).open("a", encoding="utf-8") as log:
            with self._lock:
                if self._stopping:
                    return {}
                worker = subprocess.Popen(
                    [sys.executable, "-c", WORKER],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env={**os.environ, **slot.environment},
                    start_new_session=True,  # Ctrl-C is for the parent, which tells its workers
                )
                self._running.add(worker)
            assert worker.stdin is not None
            assert worker.stdout is not None
            outcome = None
            with worker:
                with suppress(BrokenPipeError):  # it died at once: its exit code tells
                    worker.stdin.write(json.dumps(asdict(job)) + "\n")
                    worker.stdin.flush()
                for line in worker.stdout:
                    event = json.loads(line)
                    outcome = event.get("outcome", outcome)
                    if "rows" in event:
                        self._events.put(Event(name, rows=event["rows"]))
                code = worker.wait()
        with self._lock:
            self._running.discard(worker)
        return outcome or {"status": "failed", "reason": _death(code)}

    def _stop(self) -> None:
        with self._lock:
            self._stopping = True
            running = list(self._running)
        for worker in running:
            worker.terminate()
        for worker in running:
            try:
                worker.wait(SECONDS_TO_STOP)
            except (subprocess.TimeoutExpired, KeyboardInterrupt):  # a second Ctrl-C
                worker.kill()
        for thread in self._threads:
            thread.join()


def _death(code: int) -> str:
    if code == -9:
        return "the process was killed (signal 9): it ran out of memory, or somebody stopped it"
    if code < 0:
        return f"the process was ended by signal {-code}"
    return f"the process ended with exit code {code} and said nothing: its log may tell"
