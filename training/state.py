"""How far a run is: what a checkpoint keeps besides tensors, so that the run goes on as if never stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError

from stampede import CheckpointError
from stampede.training.checkpoint import (
    BEST,
    STATE,
    DamagedCheckpointError,
    checkpoints_of,
    folder_of,
    read_state,
    recover,
    step_of,
)
from stampede.training.loader import LoaderKind
from stampede.training.metrics import Metrics


@dataclass
class RunState:
    """The place of a run in its epochs, and what it has found so far.

    Attributes
    ----------
    epoch, batch:
        The epoch that is being trained, from 1, and how many of its batches are done.
    step:
        Batches trained in all, those that were skipped included.
    skipped:
        Batches that were left out since their loss or gradients were not finite.
    losses:
        Mean cross-entropy of each step since the last line on steps.
    pending:
        The line on the steps up to the end of an epoch, where that is still to be written.
    best_epoch, best_step, best_valid:
        The best epoch so far, where its checkpoint is, and its metrics; 0 before the first has ended.
    lowest_loss, epochs_since_best:
        For early stopping: the lowest valid log loss where the AUC is undefined, and epochs without progress.
    rows, seconds:
        Rows trained, and the time it took, evaluation not included.
    average_steps:
        Steps in the running mean of the weights.
    loader, order:
        The kind of the loader and the name of its order: another one would give other batches.
    learning_rates:
        Of each group of the optimizer.
    schedule:
        State of the warm-up.
    records:
        Bytes of each file of records.
    config:
        The values of the run that may not change.
    """

    epoch: int = 1
    batch: int = 0
    step: int = 0
    skipped: int = 0
    losses: list[float] = field(default_factory=list)
    pending: dict[str, Any] | None = None
    best_epoch: int = 0
    best_step: int = 0
    best_valid: Metrics | None = None
    lowest_loss: float | None = None
    epochs_since_best: int = 0
    rows: int = 0
    seconds: float = 0.0
    average_steps: int = 0
    loader: LoaderKind = "device"
    order: str = ""
    learning_rates: list[float] = field(default_factory=list)
    schedule: dict[str, Any] = field(default_factory=dict)
    records: dict[str, int] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)

    def note_epoch(self, valid: Metrics | None) -> bool:
        """Take note of the metrics of the epoch that has ended; return whether it is the best so far.

        Best is the highest valid AUC, else the last epoch. For early stopping the lowest log loss counts
        where the AUC is undefined.
        """
        before = self.best_valid
        if valid is None or valid.auc is None or before is None or before.auc is None:
            best = True
        else:
            best = valid.auc > before.auc
        improved = best
        if valid is not None and valid.auc is None and valid.logloss is not None:
            improved = self.lowest_loss is None or valid.logloss < self.lowest_loss
            self.lowest_loss = valid.logloss if improved else self.lowest_loss
        self.epochs_since_best = 0 if improved else self.epochs_since_best + 1
        if best:
            self.best_epoch, self.best_step, self.best_valid = self.epoch, self.step, valid
        return best

    def to_json(self) -> dict[str, Any]:
        """Return a JSON document."""
        document: dict[str, Any] = _ADAPTER.dump_python(self, mode="json")
        return document

    @classmethod
    def of_json(cls, document: dict[str, Any], *, folder: Path) -> Self:
        """Read a document of :meth:`to_json`.

        Raises
        ------
        DamagedCheckpointError
            It is another document.
        """
        try:
            return _ADAPTER.validate_python(document)  # type: ignore[return-value]
        except ValidationError as error:
            raise DamagedCheckpointError.of_validation(error, f"{folder}/state.json is damaged") from error


_ADAPTER = TypeAdapter(RunState)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint to go on from."""

    folder: Path
    state: RunState


def latest_checkpoint(run: Path, say: Callable[[str], None]) -> Checkpoint | None:
    """Find the latest checkpoint of a run that is whole; None where there was none yet.

    Parameters
    ----------
    say:
        Receives a line for each later one that is damaged.

    Raises
    ------
    CheckpointError
        All are damaged, or the latest is of a format that this version does not know.
    """
    recover(run)
    folders = checkpoints_of(run)
    for folder in folders:
        try:
            state = RunState.of_json(read_state(folder), folder=folder)
        except DamagedCheckpointError as error:
            say(f"{error}; trying the checkpoint before it")
            continue
        if state.best_step:
            try:
                read_state(folder_of(run, state.best_step))
            except CheckpointError as error:
                say(f"{error}; it was the best so far, and the best is sought anew from here")
                state.best_epoch, state.best_step, state.best_valid = 0, 0, None
        return Checkpoint(folder, state)
    if folders:
        raise CheckpointError(f"no checkpoint of {run} is whole: train again with --force")
    return None


def steps_to_keep(run: Path, *, last: int) -> set[int]:
    """Return the steps of the latest checkpoints, of the best, and of what was it when each was written."""
    best = (run / BEST).resolve()
    steps = {step_of(best)} if best in checkpoints_of(run.resolve()) else set()
    for folder in checkpoints_of(run)[:last]:
        steps.add(step_of(folder))
        try:
            best = json.loads((folder / STATE).read_text("utf-8"))["best_step"]
        except (OSError, ValueError, TypeError, KeyError):
            continue  # damaged: it is found out where it is to be used
        if isinstance(best, int) and best > 0:
            steps.add(best)
    return steps
