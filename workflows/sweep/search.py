"""A search around the rule: trials of other rates, L2 and zeta at one batch size, by Optuna.

STUDY/search.db keeps the trials, so that a search goes on where it was stopped; STUDY/search.json sums them
up; STUDY/trials/N has the run of the rule's own values and that of the best.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from stampede import ConfigError, DivergedError, StampedeError, StoppedError
from stampede.pipeline.dataset import Dataset
from stampede.training.config import TrainConfig
from stampede.training.metrics import Metrics
from stampede.workflows.sweep.grid import Grid, Point, configure_points, values_of
from stampede.workflows.sweep.output import write_outputs
from stampede.workflows.sweep.study import RECIPE, Study
from stampede.workflows.sweep.sweep import SweepObserver, SweepOptions, ask
from stampede.workflows.sweep.table import tabulate
from stampede.workflows.sweep.trials import SearchResult, Trial, is_the_rule, write_search
from stampede.workflows.train import run_train

if TYPE_CHECKING:
    import optuna

DATABASE = "search.db"
TRIALS = "trials"

FACTORS: dict[str, float] = {
    "learning_rate": 4.0,
    "embedding_learning_rate": 4.0,
    "l2": 4.0,
    "zeta": 10.0,
}
"""What is searched, and by which factor at most it leaves what the rule gives, up or down."""

STARTUP_TRIALS = 5
"""Trials that are not stopped early, since there is nothing to compare them with."""

FIRST_STOP = 2
"""The epoch after which a trial may be stopped; the first one warms up."""

Ending = Literal["complete", "pruned", "diverged"]


class TrialStopped(Exception):
    """Ends a run whose valid AUC is below that of most other trials at the same epoch."""


@dataclass
class _TrialObserver:
    """Reports a run's epochs to its trial, and ends the run where the trial is not worth going on."""

    trial: optuna.Trial
    study: SweepObserver
    best: float | None = None
    rows: int = 0

    def epoch_started(self, epoch: int, epochs: int, rows: int) -> None:
        """Nothing to tell."""

    def rows_trained(self, rows: int, loss: float | None) -> None:
        """Pass the rows on."""
        self.rows += rows
        self.study.rows_trained(rows)

    def epoch_ended(self, epoch: int, valid: Metrics | None, *, best: bool) -> None:
        """Report the best valid AUC so far; end the run where others were better at this epoch."""
        if valid is None or valid.auc is None:
            raise StampedeError("the search compares valid AUCs, and there is none: labels of one class only")
        self.best = valid.auc if self.best is None else max(self.best, valid.auc)
        self.trial.report(self.best, epoch)
        if self.trial.should_prune():
            raise TrialStopped


def run_search(
    dataset_path: Path,
    *,
    out: Path,
    trials: int,
    options: SweepOptions,
    say: Callable[[str], None],
    observer: SweepObserver,
) -> SearchResult:
    """Search for better hyper-parameters than the rule's, at one model and batch size.

    The first trial is the rule's own point; the others are drawn by TPE, log-uniform within
    :data:`FACTORS` of it, with the study's first seed as seed. A trial whose valid AUC is below the median
    of the others at the same epoch is stopped.

    Parameters
    ----------
    trials:
        How many there are to be in all, with those of an earlier command that this one goes on with.

    Raises
    ------
    ConfigError
        More than one point is asked for, the dataset has no valid split, or nothing is left to search.
    StoppedError
        A signal stopped it; ``resume`` goes on.
    """
    _check_optuna()
    dataset = Dataset.open(dataset_path)
    grid, recipe_name, recipe = ask(dataset, options, say)
    grid = replace(grid, seeds=grid.seeds[:1])
    point = _the_point(grid, options)
    config = configure_points([point], recipe.train, options.fixed)[point]
    if config.valid_split not in dataset.rows:
        raise ConfigError(
            f"the search chooses by the valid split, and {dataset.path} has none: "
            "prepare with --valid-fraction"
        )
    searched = _searched(config, options.fixed)
    study = Study.begin(
        out, dataset,
        recipe_name=recipe_name, recipe=recipe, fixed=options.fixed, grid=grid,
        resume=options.resume, force=options.force,
    )  # fmt: skip
    with study.alone():
        return _search(
            study, point, config, searched, dataset, trials=trials, options=options, observer=observer
        )


def _search(
    study: Study,
    point: Point,
    config: TrainConfig,
    searched: dict[str, float],
    dataset: Dataset,
    *,
    trials: int,
    options: SweepOptions,
    observer: SweepObserver,
) -> SearchResult:
    import optuna

    database = optuna.create_study(
        storage=f"sqlite:///{study.path / DATABASE}",
        study_name=point.name,
        direction="maximize",
        load_if_exists=True,
        pruner=optuna.pruners.MedianPruner(n_startup_trials=STARTUP_TRIALS, n_warmup_steps=FIRST_STOP),
    )
    _mend(database)
    done = len(_ended(database))
    # a seed for where it goes on: the same one would draw the first trials again
    database.sampler = optuna.samplers.TPESampler(seed=point.seed + done, n_startup_trials=STARTUP_TRIALS)
    if not database.trials:
        database.enqueue_trial(dict.fromkeys(searched, 1.0))
    rows = config.epochs * dataset.rows[config.train_split]
    missing = max(0, trials - done)
    observer.study_started(missing, missing * rows)
    job = _Job(study, point, config, searched, observer, rows)
    try:
        for _ in range(missing):
            _try(database, job)
    finally:
        result = _sum_up(database, job, dataset.path)
        write_search(result, study.path)
        write_outputs(tabulate(study, target_auc=options.target_auc))
    return result


@dataclass(frozen=True)
class _Job:
    study: Study
    point: Point
    config: TrainConfig
    searched: dict[str, float]
    observer: SweepObserver
    rows: int

    def values(self, factors: Mapping[str, float]) -> dict[str, float]:
        """Return the values that factors give; short ones, so that a printed command repeats a trial."""
        return {name: _times(getattr(self.config, name), factors[name]) for name in self.searched}

    def folder(self, number: int) -> Path:
        """Return where the run of a trial lies."""
        return self.study.path / TRIALS / str(number)


def _times(value: float, factor: float) -> float:
    return value if factor == 1.0 else float(f"{value * factor:.4g}")


def _try(database: optuna.Study, job: _Job) -> None:
    """Do one trial."""
    import optuna

    trial = database.ask()
    factors = {
        name: trial.suggest_float(name, 1 / most, most, log=True) for name, most in job.searched.items()
    }
    values = job.values(factors)
    watcher = _TrialObserver(trial, job.observer)
    ending: Ending = "complete"
    try:
        run_train(
            Path(job.study.dataset),
            out=job.folder(trial.number),
            recipe=str(job.study.path / RECIPE),
            given=values_of(job.point, job.study.fixed) | values,
            force=True,
            say=lambda _line: None,
            observer=watcher,
        )
    except TrialStopped:
        ending = "pruned"
    except (StoppedError, KeyboardInterrupt):
        database.tell(trial, state=optuna.trial.TrialState.FAIL)
        raise
    except DivergedError:
        ending = "diverged"
    except StampedeError:
        database.tell(trial, state=optuna.trial.TrialState.FAIL)
        raise
    trial.set_user_attr("ending", ending)
    if ending == "complete":
        database.tell(trial, watcher.best)
    else:
        database.tell(trial, state=optuna.trial.TrialState.PRUNED)
    _prune_folders(database, job)
    job.observer.rows_trained(job.rows - watcher.rows)
    what = {
        "complete": f"valid AUC {watcher.best:.5f}" if watcher.best is not None else "",
        "pruned": "stopped early, others were better"
        + (f" (valid AUC {watcher.best:.5f})" if watcher.best is not None else ""),
        "diverged": "diverged",
    }[ending]
    words = ", ".join(f"{name} {value:.3g}" for name, value in values.items())
    job.observer.run_ended(f"trial {trial.number}", f"{what}; {words}")


def _the_point(grid: Grid, options: SweepOptions) -> Point:
    """Return the one point to search around.

    Raises
    ------
    ConfigError
        There are several, or options that a search does not have.
    """
    if options.jobs is not None or options.devices is not None:
        raise ConfigError("--search makes one run after the other: leave out --jobs and --devices")
    for flag, values in (
        ("--models", grid.models),
        ("--batch-sizes", grid.batch_sizes),
        ("--rules", grid.rules),
        ("--clips", grid.clips or ("",)),
    ):
        if len(values) > 1:
            named = ",".join(map(str, values))
            raise ConfigError(f"--search looks around one point: {flag} {named} must be a single value")
    return grid.points()[0]


def _searched(config: TrainConfig, fixed: Mapping[str, Any]) -> dict[str, float]:
    """Return what is searched and by which factor: what is not given, acts, and is not 0."""
    names = {
        name: most
        for name, most in FACTORS.items()
        if name not in fixed and getattr(config, name) > 0 and (name != "zeta" or config.clip == "cowclip")
    }
    if not names:
        raise ConfigError(
            "nothing is left to search: leave out --learning-rate, --embedding-learning-rate, --l2 or --zeta"
        )
    return names


def _ended(database: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    import optuna

    return database.get_trials(
        deepcopy=False, states=(optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED)
    )


def _mend(database: optuna.Study) -> None:
    """Have trials done again that were stopped in the middle; those of a killed process stand as running."""
    import optuna

    states = optuna.trial.TrialState
    for trial in database.get_trials(states=(states.RUNNING,)):
        database.tell(trial.number, state=states.FAIL)
    done = [trial.params for trial in _ended(database)]
    waiting = [
        trial.system_attrs.get("fixed_params") for trial in database.get_trials(states=(states.WAITING,))
    ]
    for trial in database.get_trials(states=(states.FAIL,)):
        if trial.params and trial.params not in done and trial.params not in waiting:
            database.enqueue_trial(trial.params)
            waiting.append(trial.params)


def _prune_folders(database: optuna.Study, job: _Job) -> None:
    """Remove the runs of all trials but the rule's and the best."""
    best = _best(database)
    kept = {str(trial.number) for trial in _ended(database) if is_the_rule(trial.params)}
    kept |= set() if best is None else {str(best.number)}
    for folder in (job.study.path / TRIALS).iterdir():
        if folder.name not in kept:
            shutil.rmtree(folder)


def _best(database: optuna.Study) -> optuna.trial.FrozenTrial | None:
    complete = [trial for trial in _ended(database) if trial.value is not None and not _is_pruned(trial)]
    return max(complete, key=lambda trial: trial.value or 0.0, default=None)


def _is_pruned(trial: optuna.trial.FrozenTrial) -> bool:
    import optuna

    return trial.state == optuna.trial.TrialState.PRUNED


def _sum_up(database: optuna.Study, job: _Job, dataset: Path) -> SearchResult:
    found = [
        Trial(
            number=trial.number,
            ending=trial.user_attrs.get("ending", "complete"),
            auc=max(trial.intermediate_values.values(), default=None),
            epochs=len(trial.intermediate_values),
            factors=dict(trial.params),
            values=job.values(trial.params),
        )
        for trial in _ended(database)
    ]
    best = _best(database)
    return SearchResult(
        model=job.point.series.model,
        batch_size=job.point.batch_size,
        label=job.point.series.label,
        rule_values={name: getattr(job.config, name) for name in job.searched},
        trials=tuple(found),
        best=None if best is None else best.number,
        command=None if best is None else _command(job, dataset, job.values(best.params)),
    )


def _command(job: _Job, dataset: Path, values: Mapping[str, float]) -> str:
    """Return the command that trains with some values."""
    given = {
        **values_of(job.point, job.study.fixed),
        **{name: f"{value:.6g}" for name, value in values.items()},
    }
    words = ["stampede", "train", str(dataset), "--recipe", str(job.study.path / RECIPE)]
    for name, value in given.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{name}")
        else:
            words += [flag, ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)]
    return shlex.join([*words, "--out", "RUN"])


def _check_optuna() -> None:
    """Have Optuna, and have it quiet.

    Raises
    ------
    StampedeError
        It is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise StampedeError("--search needs Optuna: pip install 'stampede-ctr[search]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
