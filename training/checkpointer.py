"""When a run writes a checkpoint, and what is in it."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path

from stampede.training.averaging import WeightAverage
from stampede.training.checkpoint import mark_best, prune_checkpoints, save_checkpoint
from stampede.training.config import TrainConfig
from stampede.training.models import CTRModel
from stampede.training.optim import TableOptimizer
from stampede.training.state import RunState, steps_to_keep


class Checkpointer:
    """Writes the checkpoints of a run, and removes those that need not be kept.

    Parameters
    ----------
    run:
        The folder of the run.
    config:
        Says how often, and how many are kept.
    model, optimizer, average:
        What is saved: the running mean, where there is one, as the model.
    step:
        The step that the run begins after.
    """

    def __init__(
        self,
        run: Path,
        config: TrainConfig,
        *,
        model: CTRModel,
        optimizer: TableOptimizer,
        average: WeightAverage | None,
        step: int,
    ) -> None:
        self._run, self._config = run, config
        self._model, self._optimizer, self._average = model, optimizer, average
        self._saved_step, self._saved_at = step, time.monotonic()

    def is_due(self, step: int) -> bool:
        """Whether it is time for one after a step."""
        if self._config.checkpoint_steps is not None:
            return step - self._saved_step >= self._config.checkpoint_steps
        assert self._config.checkpoint_seconds is not None
        return time.monotonic() - self._saved_at >= self._config.checkpoint_seconds

    def save(self, state: RunState, *, best: bool = False) -> None:
        """Write a checkpoint to go on from ``state``, with the tensors as they are now.

        Parameters
        ----------
        best:
            Whether it is the best so far.

        Raises
        ------
        CheckpointError
            It cannot be written.
        """
        with self._average.applied() if self._average is not None else nullcontext() as training_weights:
            save_checkpoint(
                self._run,
                step=state.step,
                model=self._model,
                optimizer=self._optimizer,
                state=state.to_json(),
                training_weights=training_weights,
            )
        if best:
            mark_best(self._run, state.step)
        prune_checkpoints(self._run, keep=steps_to_keep(self._run, last=self._config.keep_checkpoints))
        self._saved_step, self._saved_at = state.step, time.monotonic()
