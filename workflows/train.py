"""``stampede train``: a dataset and a recipe -> a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from stampede import ConfigError
from stampede.kernels import cuda_kernels_missing
from stampede.pipeline import Dataset
from stampede.training.config import TrainConfig
from stampede.training.device import compile_kernels, resolve_device, set_precision, set_threads
from stampede.training.footprint import footprint
from stampede.training.models import MODELS
from stampede.training.trainer import Observer, Trainer, TrainResult
from stampede.workflows.recipe import RECIPES, Recipe, configure, describe_exceptions
from stampede.workflows.run import Run

SMALL_BELOW_ROWS = 1_000_000


def run_train(
    dataset_path: Path,
    *,
    out: Path,
    recipe: str | None,
    given: dict[str, Any],
    force: bool,
    say: Callable[[str], None],
    observer: Observer | None = None,
) -> tuple[TrainConfig, TrainResult]:
    """Train a model on a dataset into a new run folder.

    Parameters
    ----------
    recipe:
        Name or TOML file; None takes the one named like the dataset's log, else one by its size.
    given:
        Values of :class:`TrainConfig` that the user gave; they are taken as they are.
    say:
        Receives a line that the user should read: a choice that was made, a doubtful combination.
    """
    Run.check_free(out, force=force)
    dataset = Dataset.open(dataset_path)
    if not dataset.fields:
        raise ConfigError(
            f"{dataset.path} has no categorical field, and models need one: "
            "prepare it with --dense log-bucket, which makes categories of numbers"
        )
    chosen = recipe or _recipe_for(dataset, say)
    loaded = Recipe.named(chosen)
    config, exceptions = configure(loaded.train, given)
    device = resolve_device(config.device)
    if exceptions:
        say(describe_exceptions(exceptions, batch_size=config.batch_size))
    mode = dataset.manifest.encoding.dense_mode
    if dataset.manifest.dense and mode != loaded.prepare.dense:
        say(
            f"the dataset was prepared with --dense {mode}, the recipe {chosen} is meant for "
            f"{loaded.prepare.dense}: prepare with --recipe {chosen}, or choose another one to train with"
        )
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
    if config.batch_size > dataset.rows["train"]:
        say(
            f"a batch of {config.batch_size:,} holds all {dataset.rows['train']:,} training rows: each epoch "
            "is one step, with rates and L2 for the batch size that was asked for"
        )
    if device.type == "cpu":
        compile_kernels(say)
    # the trainer first: what can fail on the way must not cost an old run that --force replaces
    trainer = Trainer(config, dataset, device=device, run=out, observer=observer)
    say(trainer.train.describe())
    Run.create(out, config, dataset, force=force)
    return config, trainer.fit()


def _recipe_for(dataset: Dataset, say: Callable[[str], None]) -> str:
    """Return the recipe named like the dataset's log, else one by its size."""
    log, rows = dataset.manifest.log.name, dataset.rows["train"]
    if log in RECIPES:
        say(f"took the recipe {log}, named like the log; choose another with --recipe")
        return log
    recipe = "small" if rows < SMALL_BELOW_ROWS else "criteo"
    say(f"took the recipe {recipe} for {rows:,} training rows; choose another with --recipe")
    return recipe
