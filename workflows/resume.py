"""A run that was stopped -> where it goes on: its configuration, its checkpoint, what may have changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from stampede import CheckpointError, ConfigError
from stampede.pipeline import Dataset
from stampede.training.config import RESUMABLE, TrainConfig
from stampede.training.state import Checkpoint, RunState, latest_checkpoint
from stampede.workflows.recipe import Recipe, configure
from stampede.workflows.run import Run


def resume_run(
    path: Path,
    dataset: Dataset,
    *,
    recipe: str | None,
    given: dict[str, Any],
    say: Callable[[str], None],
) -> tuple[Run, Checkpoint | None]:
    """Find where a run goes on; None for its beginning, where it has no checkpoint yet.

    Parameters
    ----------
    recipe, given:
        What the user gave besides: the values of the run, but for those of ``RESUMABLE``, which may change.

    Raises
    ------
    CheckpointError
        The folder is no run, is of another dataset or one that grew since, or has no whole checkpoint.
    ConfigError
        A value is given that differs from the run's.
    """
    run = Run.open(path)
    if not run.was_trained_on(dataset):
        raise CheckpointError(
            f"{dataset.path} is not the dataset of {path}, which was at {run.origin.path}: "
            "a run goes on with its own"
        )
    if dataset.sizes != {name: known.size for name, known in run.encoder.vocabularies.items()}:
        raise CheckpointError(
            f"the vocabularies of {dataset.path} grew since {path} began: make a new run, with --init-from "
            f"{path} to take over what it learned"
        )
    config = _changed(run, recipe=recipe, given=given)
    start = latest_checkpoint(path, say)
    if start is None:
        say(f"{path} has no checkpoint yet: it begins anew")
    else:
        state = start.state
        _check_unchanged(run, config, state)
        if state.epoch > config.epochs:
            say(f"all {config.epochs} epochs are done: more of them would go on (--epochs)")
        else:
            say(f"going on from step {state.step:,}, in epoch {state.epoch}: {start.folder}")
    if config.threads != run.config.threads:
        say("another number of --threads: the last digits may differ from those of an unbroken run")
    return run.with_config(config), start


def _check_unchanged(run: Run, config: TrainConfig, state: RunState) -> None:
    """Raise where the run's config.toml was edited, or where less is asked for than is done."""
    values = config.fixed()
    for name, before in state.config.items():
        if values.get(name) != before:
            raise ConfigError(
                f"{run.path}/config.toml was changed: {name} is {values.get(name)} there, and the run was "
                f"begun with {before}; a run goes on with its own values"
            )
    if state.epoch - 1 > config.epochs:
        raise ConfigError(f"--epochs {config.epochs}: {run.path} has done {state.epoch - 1} already")
    if config.max_steps is not None and state.step > config.max_steps:
        raise ConfigError(f"--max-steps {config.max_steps}: {run.path} has done {state.step} already")


def _changed(run: Run, *, recipe: str | None, given: dict[str, Any]) -> TrainConfig:
    """Return the run's configuration with what may change; refuse other changes."""
    before = run.config
    values = before.model_dump()
    if recipe is not None:
        wanted, _ = configure(Recipe.named(recipe).train, given)
    else:
        wanted = TrainConfig.check(**{**values, **given})
    for name, value in wanted.model_dump().items():
        if name not in RESUMABLE and value != values[name]:
            raise ConfigError(
                f"{run.path} was begun with {_flag(name)} {values[name]}, not {value}: --resume lets only "
                f"{', '.join(map(_flag, RESUMABLE))} change; train a new run for other values"
            )
    return before.model_copy(update={name: given[name] for name in RESUMABLE if name in given})


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
