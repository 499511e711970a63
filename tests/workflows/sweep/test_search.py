"""The search around a rule: on a small dataset, stopped, gone on with, and as a command."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stampede import StoppedError
from stampede.workflows.page import render
from stampede.workflows.sweep import SweepOptions, run_search
from stampede.workflows.sweep.page import study_page
from stampede.workflows.sweep.study import Study
from stampede.workflows.sweep.table import tabulate
from stampede.workflows.sweep.trials import SearchResult, read_search

if TYPE_CHECKING:
    from tests.conftest import Command

optuna = pytest.importorskip("optuna")

TINY = ("--recipe", "small", "--hidden", "16", "--epochs", "2", "--batch-sizes", "256", "--device", "cpu")


class Watcher:
    """Keeps the lines, and sends a signal after so many of them."""

    def __init__(self, *, stop_after: int | None = None) -> None:
        self.lines: list[str] = []
        self.stop_after = stop_after

    def study_started(self, runs: int, rows: int) -> None:
        self.runs, self.rows = runs, rows

    def rows_trained(self, rows: int) -> None:
        self.rows -= rows
        if self.stop_after is not None and len(self.lines) >= self.stop_after:
            raise StoppedError("stopped at step 1")

    def run_ended(self, name: str, what: str) -> None:
        self.lines.append(f"{name}: {what}")


def search(dataset: Path, out: Path, watcher: Watcher, *, trials: int, resume: bool = False) -> SearchResult:
    options = SweepOptions(
        recipe="small", models=None, batch_sizes="256", rules=None, clips=None, seeds="1",
        fixed={"hidden": (16,), "epochs": 2, "patience": 0, "device": "cpu"}, resume=resume,
    )  # fmt: skip
    return run_search(
        dataset, out=out, trials=trials, options=options, say=lambda _line: None, observer=watcher
    )


@pytest.fixture(scope="module")
def found(small_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[SearchResult, Path]:
    out = tmp_path_factory.mktemp("search") / "study"
    return search(small_dataset, out, Watcher(), trials=6), out


def test_the_first_trial_is_the_rules_own(found: tuple[SearchResult, Path]) -> None:
    result, _ = found

    first = result.trials[0]
    assert first.values == result.rule_values
    assert result.rule_values == pytest.approx(
        {"learning_rate": 4e-4, "embedding_learning_rate": 1e-3, "l2": 5e-4, "zeta": 1e-5}
    )
    assert result.rule_trial == first


def test_trials_stay_within_the_factors_and_the_best_is_the_best(found: tuple[SearchResult, Path]) -> None:
    result, out = found

    assert len(result.trials) == 6
    for trial in result.trials:
        for name, factor in trial.factors.items():
            most = 10 if name == "zeta" else 4
            assert 1 / most <= factor <= most
    assert result.best_trial is not None
    complete = [trial.auc for trial in result.trials if trial.ending == "complete" and trial.auc is not None]
    assert result.best_trial.auc == max(complete)
    assert {folder.name for folder in (out / "trials").iterdir()} == {"0", str(result.best)}


def test_the_command_repeats_the_best_trial(
    found: tuple[SearchResult, Path], stampede: Command, tmp_path: Path
) -> None:
    result, _ = found
    assert result.command is not None
    assert result.best_trial is not None
    words = shlex.split(result.command)
    assert words[0] == "stampede"

    answer = stampede(*words[1:-1], tmp_path / "run", "--json")

    assert answer.code == 0, answer.err
    assert answer.json["valid"]["auc"] == pytest.approx(result.best_trial.auc, abs=1e-9)


def test_the_page_shows_the_trials(found: tuple[SearchResult, Path]) -> None:
    result, out = found

    html = render(study_page(tabulate(Study.open(out))))

    assert read_search(out) == result
    assert "embedding learning rate (log scale)" in html
    assert "not trained yet" not in html


def test_a_search_that_was_stopped_goes_on_with_the_trial_that_it_left(
    small_dataset: Path, tmp_path: Path
) -> None:
    out = tmp_path / "study"
    with pytest.raises(StoppedError):
        search(small_dataset, out, Watcher(stop_after=2), trials=4)
    before = json.loads((out / "search.json").read_text())
    database = optuna.load_study(study_name=None, storage=f"sqlite:///{out / 'search.db'}")
    left = database.trials[-1].params
    watcher = Watcher()

    result = search(small_dataset, out, watcher, trials=4, resume=True)

    assert len(before["trials"]) == 2
    assert watcher.runs == 2
    assert watcher.rows == 0
    assert len(result.trials) == 4
    assert result.trials[2].factors == left


def test_a_trial_below_the_others_is_stopped(small_dataset: Path, tmp_path: Path) -> None:
    import torch

    from stampede.training.metrics import Evaluation, Metrics
    from stampede.workflows.sweep.search import FIRST_STOP, TrialStopped, _TrialObserver

    def metrics(*scores: float) -> Metrics:
        evaluation = Evaluation()
        evaluation.update(torch.tensor(scores), torch.tensor([0, 0, 1, 1]))
        return evaluation.result()

    good, bad = metrics(0, 1, 2, 3), metrics(3, 2, 1, 0)
    database = optuna.create_study(
        direction="maximize",
        pruner=optuna.pruners.MedianPruner(n_startup_trials=1, n_warmup_steps=FIRST_STOP),
    )
    first = database.ask()
    watcher = _TrialObserver(first, Watcher())
    for epoch in (1, 2):
        watcher.epoch_ended(epoch, good, best=True)
    database.tell(first, watcher.best)
    second = _TrialObserver(database.ask(), Watcher())

    second.epoch_ended(1, bad, best=True)
    with pytest.raises(TrialStopped):
        second.epoch_ended(2, bad, best=False)


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        (("--rules", "none,linear"), "--rules none,linear must be a single value"),
        (("--models", "deepfm,dcn"), "--models deepfm,dcn must be"),
        (("--jobs", "2"), "--jobs"),
        (
            ("--l2", "0", "--learning-rate", "1", "--embedding-learning-rate", "1", "--zeta", "1"),
            "nothing is left to search",
        ),
    ],
)
def test_usage(
    stampede: Command, small_dataset: Path, tmp_path: Path, flags: tuple[str, ...], fault: str
) -> None:
    answer = stampede("sweep", small_dataset, "--out", tmp_path / "s", *TINY, *flags, "--search", "3")

    assert answer.code == 2
    assert fault in answer.err


def test_a_search_needs_a_valid_split(stampede: Command, small_log: Path, tmp_path: Path) -> None:
    stampede("prepare", "criteo", small_log, "--out", tmp_path / "ds", "--valid-fraction", "0")

    answer = stampede("sweep", tmp_path / "ds", "--out", tmp_path / "s", *TINY, "--search", "3")

    assert answer.code == 2
    assert "--valid-fraction" in answer.err
