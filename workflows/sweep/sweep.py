"""The study from its options to its table: plan, train what is missing, sum up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from stampede import ConfigError
from stampede.pipeline.dataset import Dataset
from stampede.training.config import TrainConfig
from stampede.workflows.recipe import Recipe
from stampede.workflows.sweep.devices import slots_of
from stampede.workflows.sweep.grid import Grid, Point, configure_points, identity, natural_clip, values_of
from stampede.workflows.sweep.measures import Measures
from stampede.workflows.sweep.output import write_outputs
from stampede.workflows.sweep.pool import Pool, Slot
from stampede.workflows.sweep.study import RECIPE, Outcome, Study, names_of
from stampede.workflows.sweep.table import StudyTable, tabulate
from stampede.workflows.sweep.worker import Job
from stampede.workflows.train import recipe_for


class SweepObserver(Protocol):
    """Is told how far a study is."""

    def study_started(self, runs: int, rows: int) -> None:
        """Begin to train that many runs, of that many rows at most."""

    def rows_trained(self, rows: int) -> None:
        """Take note of rows that were trained, or will not be since their run has ended."""

    def run_ended(self, name: str, what: str) -> None:
        """Take note of the end of a run and what it came to, in words."""


@dataclass(frozen=True)
class SweepOptions:
    """How a study is made.

    Attributes
    ----------
    recipe:
        Name or TOML file; None takes what ``train`` would.
    models, rules:
        Lists with commas; None takes the recipe's one.
    fixed:
        Values of :class:`TrainConfig` that all points share.
    base_batch_size:
        The batch size that the recipe's values are of; None takes the recipe's.
    devices, jobs:
        See :func:`stampede.workflows.sweep.devices.slots_of`.
    """

    recipe: str | None
    models: str | None
    batch_sizes: str
    rules: str | None
    clips: str | None
    seeds: str
    fixed: Mapping[str, Any]
    base_batch_size: int | None = None
    devices: tuple[int, ...] | None = None
    jobs: int | None = None
    target_auc: float | None = None
    resume: bool = False
    force: bool = False


def run_sweep(
    dataset_path: Path,
    *,
    out: Path,
    options: SweepOptions,
    say: Callable[[str], None],
    observer: SweepObserver,
) -> StudyTable:
    """Train the points of a study that have not been trained, side by side where there is room, and sum up.

    A run that diverges or fails does not stop the others. However it ends, Ctrl-C included, the table and the
    page of what there is are written.

    Raises
    ------
    ConfigError
        Options that have no meaning together, or that are not those of the study to go on with.
    CheckpointError
        Something else lies at ``out``.
    """
    dataset = Dataset.open(dataset_path)
    grid, recipe_name, recipe = ask(dataset, options, say)
    asked = configure_points(grid.points(), recipe.train, options.fixed)
    first = next(iter(asked.values()))
    if first.train_split not in dataset.rows:
        raise ConfigError(f"--train-split {first.train_split}: {dataset.path} has {', '.join(dataset.rows)}")
    slots = slots_of(first.device, devices=options.devices, jobs=options.jobs, threads=first.threads)
    # nothing is written, or replaced by --force, before all of it has a meaning
    study = Study.begin(
        out, dataset,
        recipe_name=recipe_name, recipe=recipe, fixed=options.fixed, grid=grid,
        resume=options.resume, force=options.force,
    )  # fmt: skip
    with study.alone():
        configs = study.points()
        outcomes = study.outcomes()
        jobs = _jobs(study, asked, outcomes, names_of(configs, outcomes))
        _say_what_is_odd(study, asked, dataset.rows[first.train_split], say)
        try:
            _train(study, jobs, asked, slots, rows=dataset.rows[first.train_split], observer=observer)
        finally:
            table = tabulate(study, target_auc=options.target_auc)
            write_outputs(table)
    return table


def ask(dataset: Dataset, options: SweepOptions, say: Callable[[str], None]) -> tuple[Grid, str, Recipe]:
    """Return the grid, the name of the recipe, and the recipe at the base batch."""
    name = options.recipe or recipe_for(dataset, say)
    recipe = Recipe.named(name)
    base = options.base_batch_size
    if base is not None and base != recipe.train.batch_size:
        if base < 1:
            raise ConfigError(f"--base-batch-size {base}: it must be 1 or more")
        changes: dict[str, Any] = {"batch_size": base}
        if recipe.train.exceptions:
            say(
                f"the recipe's exceptions for some batch sizes are left out: they are of its own base batch, "
                f"{recipe.train.batch_size:,}"
            )
            changes["exceptions"] = ()
        recipe = recipe.model_copy(update={"train": recipe.train.model_copy(update=changes)})
    grid = Grid.parse(
        models=options.models or recipe.train.model,
        batch_sizes=options.batch_sizes,
        rules=options.rules or str(recipe.train.rule),
        clips=options.clips,
        seeds=options.seeds,
    )
    return grid, name, recipe


def _jobs(
    study: Study,
    asked: Mapping[Point, TrainConfig],
    outcomes: Mapping[str, Outcome],
    names: Mapping[Point, str],
) -> dict[str, tuple[Point, Job]]:
    """Return the runs that are not settled: name -> the first point that is it, and the job."""
    jobs: dict[str, tuple[Point, Job]] = {}
    for point, config in asked.items():
        outcome = outcomes.get(identity(config))
        if (outcome is not None and outcome.is_settled) or names[point] in jobs:
            continue
        jobs[names[point]] = (
            point,
            Job(
                dataset=study.dataset,
                run=str(study.run_folder(names[point])),
                recipe=str(study.path / RECIPE),
                given=values_of(point, study.fixed),
            ),
        )
    return jobs


def _say_what_is_odd(
    study: Study, asked: Mapping[Point, TrainConfig], rows: int, say: Callable[[str], None]
) -> None:
    """Tell what a reader of the table would wonder about."""
    scaled = [name for name in ("learning_rate", "embedding_learning_rate", "l2") if name in study.fixed]
    if scaled:
        flags = ", ".join("--" + name.replace("_", "-") for name in scaled)
        say(f"{flags}: the same at every batch size, so that the rules do not scale it")
    sizes = sorted({point.batch_size for point in asked})
    if study.base_batch_size not in sizes:
        say(
            f"the base batch, {study.base_batch_size:,}, is not among --batch-sizes: "
            "with it, the table has differences to it"
        )
    if sizes[-1] > rows:
        say(f"a batch of {sizes[-1]:,} holds all {rows:,} training rows: each epoch is one step")
    unusual = [point for point in asked if point.series.clip != natural_clip(point.series.rule)]
    if any(point.series.rule == "cowclip" for point in unusual):
        say("the rule cowclip is meant to go with the clip cowclip; the table has both apart")


def _train(
    study: Study,
    jobs: Mapping[str, tuple[Point, Job]],
    asked: Mapping[Point, TrainConfig],
    slots: Sequence[Slot],
    *,
    rows: int,
    observer: SweepObserver,
) -> None:
    left = {name: asked[point].epochs * rows for name, (point, _) in jobs.items()}
    observer.study_started(len(jobs), sum(left.values()))
    for name in jobs:
        study.forget(name)
    pool = Pool({name: job for name, (_, job) in jobs.items()}, slots, log=study.log_file)
    for event in pool.events():
        done = min(event.rows, left[event.name])
        left[event.name] -= done
        observer.rows_trained(done)
        if event.outcome is not None:
            outcome = Outcome(event.name, identity(asked[jobs[event.name][0]]), **event.outcome)
            study.keep(outcome)
            observer.rows_trained(left.pop(event.name))
            observer.run_ended(outcome.name, _describe(outcome, study))


def _describe(outcome: Outcome, study: Study) -> str:
    """Put into words what a run came to."""
    if outcome.status != "finished":
        return f"{outcome.status}: {outcome.reason}"
    measures = Measures.read(study.run_folder(outcome.name))
    metrics = measures.test or measures.valid
    auc = None if metrics is None else metrics["auc"]
    text = "AUC undefined" if auc is None else f"AUC {auc:.5f}"
    return f"{text}, {outcome.epochs} epochs, {outcome.seconds:.1f} s"
