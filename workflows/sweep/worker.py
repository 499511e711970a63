"""One run of a study, in a process of its own: a job as JSON on stdin, events as JSON lines on stdout.

Events: ``{"rows": N}``, the rows trained since the last one, about once a second; at the end
``{"outcome": {...}}`` with the values of :class:`stampede.workflows.sweep.study.Outcome` that the run gives.
What the run would tell a user goes to stderr. Where stdin ends, the parent is gone and the run stops.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stampede.training.trainer import TrainResult

SECONDS_PER_EVENT = 1.0
INTERRUPTED = 130


@dataclass(frozen=True)
class Job:
    """What a worker is to do.

    Attributes
    ----------
    given:
        Values of :class:`stampede.training.config.TrainConfig`, as the user of ``train`` gives them.
    """

    dataset: str
    run: str
    recipe: str
    given: dict[str, Any]


class _Reporter:
    """Tells the parent about the rows that are done."""

    def __init__(self, events: IO[str]) -> None:
        self._events = events
        self._rows = 0
        self._reported = time.monotonic()

    def epoch_started(self, epoch: int, epochs: int, rows: int) -> None:
        """Nothing to tell."""

    def rows_trained(self, rows: int, loss: float | None) -> None:
        """Count the rows of a step."""
        self._rows += rows
        if time.monotonic() - self._reported > SECONDS_PER_EVENT:
            send(self._events, rows=self._rows)
            self._rows, self._reported = 0, time.monotonic()

    def epoch_ended(self, epoch: int, valid: Any, *, best: bool) -> None:
        """Write the epoch to the log."""
        if valid is not None:
            print(f"epoch {epoch}: valid AUC {valid.auc}, log loss {valid.logloss}", file=sys.stderr)


def send(events: IO[str], **event: Any) -> None:
    """Send an event."""
    events.write(json.dumps(event) + "\n")
    events.flush()


def run_job(job: Job, events: IO[str]) -> dict[str, Any]:
    """Do a job, from the last checkpoint of its run where there is one; return the values of its outcome.

    Raises
    ------
    StoppedError
        A signal stopped it, once its state was saved.
    """
    from stampede import CheckpointError, DivergedError, StampedeError, StoppedError

    reporter = _Reporter(events)
    try:
        try:
            result = _train(job, reporter, resume=os.path.lexists(job.run))
        except CheckpointError as error:
            print(f"{error}: begun anew", file=sys.stderr)
            result = _train(job, reporter, resume=False)
    except StoppedError:
        raise
    except StampedeError as error:
        print(error, file=sys.stderr)
        return {"status": "diverged" if isinstance(error, DivergedError) else "failed", "reason": str(error)}
    except Exception as error:
        traceback.print_exc()
        reason = (str(error).strip().splitlines() or [""])[0]
        return {"status": "failed", "reason": f"{type(error).__name__}: {reason}"}
    return {
        "status": "finished",
        "epochs": result.epochs,
        "steps": result.steps,
        "samples_per_second": result.samples_per_second,
        "seconds": result.seconds,
    }


def _train(job: Job, reporter: _Reporter, *, resume: bool) -> TrainResult:
    from stampede.workflows.train import run_train

    _, result = run_train(
        Path(job.dataset),
        out=Path(job.run),
        recipe=job.recipe,
        given=job.given,
        force=not resume,
        resume=resume,
        say=lambda line: print(line, file=sys.stderr, flush=True),
        observer=reporter,
    )
    return result


def main() -> None:
    """Do the job on stdin."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell may have left SIGINT ignored
        signal.signal(number, signal.default_int_handler)
    events = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no event
    job = Job(**json.loads(sys.stdin.readline()))
    threading.Thread(target=_stop_with_the_parent, daemon=True).start()
    from stampede import StoppedError

    try:
        send(events, outcome=run_job(job, events))
    except (KeyboardInterrupt, StoppedError) as error:
        print(error, file=sys.stderr)
        sys.exit(INTERRUPTED)


def _stop_with_the_parent() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGINT)
