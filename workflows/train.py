"""``stampede train``: a dataset and a recipe -> a run."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from stampede import ConfigError, StoppedError
from stampede.kernels import cuda_kernels_missing
from stampede.pipeline import Dataset
from stampede.training.config import TrainConfig
from stampede.training.device import compile_kernels, resolve_device, set_precision, set_threads
from stampede.training.footprint import footprint
from stampede.training.models import MODELS, CTRModel
from stampede.training.optim import TableOptimizer
from stampede.training.state import Checkpoint
from stampede.training.stopping import StopSignals
from stampede.training.trainer import Observer, Trainer, TrainResult
from stampede.workflows.files import hold_folder
from stampede.workflows.growth import init_from as begin_with
from stampede.workflows.recipe import RECIPES, Recipe, TrainRecipe, configure, describe_exceptions
from stampede.workflows.resume import resume_run
from stampede.workflows.run import CONFIG, Run

SMALL_BELOW_ROWS = 1_000_000

_SPLITS = ("train_split", "valid_split", "test_split")


def run_train(
    dataset_path: Path,
    *,
    out: Path,
    recipe: str | None,
    given: dict[str, Any],
    force: bool,
    say: Callable[[str], None],
    resume: bool = False,
    init_from: Path | None = None,
    observer: Observer | None = None,
) -> tuple[TrainConfig, TrainResult]:
    """Train a model on a dataset into a new run folder, or go on with one.

    SIGINT and SIGTERM stop it once its state is saved.

    Parameters
    ----------
    recipe:
        Name or TOML file; None takes the one named like the dataset's log, else one by its size.
    given:
        Values of :class:`TrainConfig` that the user gave; they are taken as they are.
    force:
        Whether to replace a run that is there.
    say:
        Receives a line that the user should read: a choice that was made, a doubtful combination.
    resume:
        Whether to go on with the run that is there, from its last checkpoint; a new one begins where none is.
    init_from:
        A run to begin with: its best epoch, the optimizer's state with it. Its values are this run's, but for
        those that are given, one epoch and no warm-up. The vocabularies may have grown since.

    Raises
    ------
    StoppedError
        A signal stopped it.
    CheckpointError, ConfigError, DatasetError, DeviceError
        See there; nothing is lost.
    """
    if resume and force:
        raise ConfigError("--resume goes on with a run, --force replaces it: give one of them")
    resume = resume and os.path.lexists(out)
    if not resume:
        Run.check_free(out, force=force)
    dataset = Dataset.open(dataset_path)
    if not dataset.fields:
        raise ConfigError(
            f"{dataset.path} has no categorical field, and models need one: "
            "prepare it with --dense log-bucket, which makes categories of numbers"
        )
    with ExitStack() as held:
        if resume and (out / CONFIG).is_file():  # what is no run is refused, and left as it is
            held.enter_context(hold_folder(out))
        config, start = _begin(
            dataset, out=out, recipe=recipe, given=given, resume=resume, init_from=init_from, say=say
        )
        _check_splits(config, dataset, say)
        device = resolve_device(config.device)
        _tell(config, dataset, device, say)
        stop = held.enter_context(StopSignals())
        # the trainer first: what can fail on the way must not cost an old run that --force replaces
        trainer = Trainer(
            config,
            dataset,
            device=device,
            run=out,
            observer=observer,
            initialise=_initialise(config, dataset) if start is None else None,
            start=start,
            stop=stop,
        )
        say(trainer.train.describe())
        if not resume:
            if (out / CONFIG).is_file():
                held.enter_context(hold_folder(out))
            Run.create(out, config, dataset, force=force)
            held.enter_context(hold_folder(out))
        try:
            result = trainer.fit()
        except StoppedError as error:
            raise StoppedError(
                f"{error}, its state is saved; go on with: stampede train {dataset_path} --out {out} --resume"
            ) from error
    if result.skipped:
        say(
            f"{result.skipped:,} of {result.steps:,} batches were left out: their loss or gradients were not "
            f"finite; {out}/metrics.jsonl has their steps"
        )
    return config, result


def _begin(
    dataset: Dataset,
    *,
    out: Path,
    recipe: str | None,
    given: dict[str, Any],
    resume: bool,
    init_from: Path | None,
    say: Callable[[str], None],
) -> tuple[TrainConfig, Checkpoint | None]:
    """Return the values of a run, and the checkpoint that it goes on from."""
    if resume:
        if init_from is not None:
            given = {**given, "init_from": str(init_from.absolute())}
        run, start = resume_run(out, dataset, recipe=recipe, given=given, say=say)
        return run.config, start
    if init_from is not None:
        return _configure_from(init_from, recipe=recipe, given=given, say=say), None
    return _configure(dataset, recipe=recipe, given=given, say=say), None


def _configure(
    dataset: Dataset, *, recipe: str | None, given: dict[str, Any], say: Callable[[str], None]
) -> TrainConfig:
    """Return the values of a new run."""
    chosen = recipe or recipe_for(dataset, say)
    loaded = Recipe.named(chosen)
    config, exceptions = configure(loaded.train, given)
    if exceptions:
        say(describe_exceptions(exceptions, batch_size=config.batch_size))
    mode = dataset.manifest.encoding.dense_mode
    if dataset.manifest.dense and mode != loaded.prepare.dense:
        say(
            f"the dataset was prepared with --dense {mode}, the recipe {chosen} is meant for "
            f"{loaded.prepare.dense}: prepare with --recipe {chosen}, or choose another one to train with"
        )
    return config


def _configure_from(
    init_from: Path, *, recipe: str | None, given: dict[str, Any], say: Callable[[str], None]
) -> TrainConfig:
    """Return the values of a run that begins with another one: those of that one but for what is given."""
    if recipe is not None:
        raise ConfigError("--init-from takes the values of its run: give single ones, not --recipe")
    before = Run.open(init_from).config
    one_pass = {"epochs": 1, "patience": 0, "warmup_epochs": 0.0}
    splits = {name: TrainConfig.model_fields[name].default for name in _SPLITS}
    values = {**before.model_dump(), **one_pass, **splits, "max_steps": None}
    config, _ = configure(TrainRecipe(**values), given)
    say(
        f"beginning with the best epoch of {init_from} and its values: {config.model}, batch "
        f"{config.batch_size:,}, epochs {config.epochs}"
    )
    return config.model_copy(update={"init_from": str(init_from.absolute())})


def _initialise(config: TrainConfig, dataset: Dataset) -> Callable[[CTRModel, TableOptimizer], None] | None:
    """Return what puts the weights of the run in place that this one begins with."""
    if config.init_from is None:
        return None
    before = Run.open(config.init_from)
    return lambda model, optimizer: begin_with(before, dataset, model, optimizer)


def _check_splits(config: TrainConfig, dataset: Dataset, say: Callable[[str], None]) -> None:
    """Raise for a split that was named and is not there; valid and test may be missing by default."""
    for option in _SPLITS:
        split = getattr(config, option)
        optional = () if option == "train_split" else (TrainConfig.model_fields[option].default, "none")
        if split not in dataset.rows and split not in optional:
            raise ConfigError(
                f"--{option.replace('_', '-')} {split}: {dataset.path} has no such split, but "
                f"{', '.join(dataset.rows)}"
            )
    if config.train_split in (config.valid_split, config.test_split):
        say(
            f"the rows of {config.train_split} are trained on and evaluated: their AUC is too good to be true"
        )


def _tell(config: TrainConfig, dataset: Dataset, device: torch.device, say: Callable[[str], None]) -> None:
    """Set the process up, and say what a user should know before the run begins.

    Raises
    ------
    ConfigError
        The tables do not fit.
    """
    set_precision(config.precision, device, say)
    if device.type == "cuda" and (missing := cuda_kernels_missing()) is not None:
        say(missing)
    if config.update == "touched":
        say(
            "--update touched: only the rows of a batch are updated, which is another algorithm than the "
            "paper's CowClip: the others do not decay; it is for tables too large to go through at every step"
        )
    set_threads(config.threads)
    needed = footprint(
        config, list(dataset.sizes.values()), first_order=MODELS[config.model].uses_first_order
    )
    needed.check(device)
    say(needed.describe())
    rows = dataset.rows[config.train_split]
    if config.batch_size > rows:
        say(
            f"a batch of {config.batch_size:,} holds all {rows:,} training rows: each epoch "
            "is one step, with rates and L2 for the batch size that was asked for"
        )
    if device.type == "cpu":
        compile_kernels(say)


def recipe_for(dataset: Dataset, say: Callable[[str], None]) -> str:
    """Return the recipe named like the dataset's log, else one by its size."""
    log, rows = dataset.manifest.log.name, dataset.rows["train"]
    if log in RECIPES:
        say(f"took the recipe {log}, named like the log; choose another with --recipe")
        return log
    recipe = "small" if rows < SMALL_BELOW_ROWS else "criteo"
    say(f"took the recipe {recipe} for {rows:,} training rows; choose another with --recipe")
    return recipe
