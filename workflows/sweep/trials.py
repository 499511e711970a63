"""What a search found, as a file and as a part of the study's page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from stampede.workflows.page import MUTED, SERIES, Chart, Choice, Facts, Note, Section, Table, new_figure

SEARCH = "search.json"

WORDS = {
    "learning_rate": "dense learning rate",
    "embedding_learning_rate": "embedding learning rate",
    "l2": "L2",
    "zeta": "zeta",
}


@dataclass(frozen=True)
class Trial:
    """One trial.

    Attributes
    ----------
    ending:
        ``complete``, ``pruned`` or ``diverged``.
    auc:
        The best valid AUC of its epochs.
    factors, values:
        What it was trained with: by which factor that leaves the rule, and as it is.
    """

    number: int
    ending: str
    auc: float | None
    epochs: int
    factors: dict[str, float]
    values: dict[str, float]


@dataclass(frozen=True)
class SearchResult:
    """A search around the values that a rule gives at a batch size.

    Attributes
    ----------
    best:
        Number of the best trial among those that were not stopped.
    command:
        What trains with its values.
    """

    model: str
    batch_size: int
    label: str
    rule_values: dict[str, float]
    trials: tuple[Trial, ...]
    best: int | None
    command: str | None

    @property
    def rule_trial(self) -> Trial | None:
        """The trial of the rule's own values."""
        return next((trial for trial in self.trials if is_the_rule(trial.factors)), None)

    @property
    def best_trial(self) -> Trial | None:
        """The best trial."""
        return next((trial for trial in self.trials if trial.number == self.best), None)


def is_the_rule(factors: Mapping[str, float]) -> bool:
    """Whether a trial's values are those of the rule."""
    return all(factor == 1.0 for factor in factors.values())


def write_search(result: SearchResult, study: Path) -> None:
    """Write a search into its study."""
    unfinished = study / f".{SEARCH}.unfinished"
    unfinished.write_text(json.dumps(asdict(result), indent=1) + "\n", "utf-8")
    unfinished.replace(study / SEARCH)


def read_search(study: Path) -> SearchResult | None:
    """Read the search of a study; None where none was made."""
    try:
        document = json.loads((study / SEARCH).read_text("utf-8"))
    except FileNotFoundError:
        return None
    trials = tuple(Trial(**trial) for trial in document.pop("trials"))
    return SearchResult(trials=trials, **document)


def search_section(result: SearchResult) -> Section:
    """Return the part of the page that shows a search."""
    if not result.trials:
        return Section("Search", "", [Note("No trial has ended yet: --resume goes on.")])
    best, rule = result.best_trial, result.rule_trial
    ending = [trial.ending for trial in result.trials]
    return Section(
        "Search",
        f"Trials of other values around those of the rule {result.label} for {result.model} at batch "
        f"{result.batch_size:,}; the first is the rule's own. Trials are chosen by the valid AUC, so that of "
        "the best is a little too good: compare its run with the rule's on the test split."
        + (f"\n\nTrain with the best values: {result.command}" if result.command else ""),
        [
            Facts(
                [
                    ("trials", f"{len(result.trials)}", f"{ending.count('pruned')} stopped early"),
                    ("diverged", f"{ending.count('diverged')}"),
                    ("the rule's valid AUC", _auc(rule)),
                    ("the best valid AUC", _auc(best), "" if best is None else f"trial {best.number}"),
                ]
            ),
            _history(result.trials),
            Choice(
                "Valid AUC by value",
                "Value",
                [_scatter(result, name) for name in result.rule_values],
            ),
            _values(result),
        ],
    )


def _history(trials: Sequence[Trial]) -> Chart:
    import plotly.graph_objects as go

    figure = new_figure(x="trial", y="valid AUC")
    _add_trials(figure, trials, [trial.number for trial in trials])
    best: list[float] = []
    complete = [trial for trial in trials if trial.ending == "complete" and trial.auc is not None]
    for trial in complete:
        best.append(max([*best[-1:], trial.auc or 0.0]))
    figure.add_trace(
        go.Scatter(
            x=[trial.number for trial in complete],
            y=best,
            mode="lines",
            name="best so far",
            line={"color": MUTED, "shape": "hv"},
            hoverinfo="skip",
        )
    )
    return Chart(
        "Trials one after the other",
        figure,
        "Each trial's best valid AUC, and the best so far. Trials that were stopped early have fewer epochs.",
    )


def _scatter(result: SearchResult, name: str) -> Chart:
    figure = new_figure(x=f"{WORDS[name]} (log scale)", y="valid AUC", x_type="log")
    _add_trials(figure, result.trials, [trial.values[name] for trial in result.trials])
    figure.add_vline(x=result.rule_values[name], line={"color": MUTED, "dash": "dot"})
    return Chart(
        WORDS[name],
        figure,
        f"Each trial's best valid AUC over its {WORDS[name]}; the dotted line is what the rule gives, "
        f"{result.rule_values[name]:.3g}. Where points rise to one side, the rule lies on the other.",
    )


def _add_trials(figure: object, trials: Sequence[Trial], x: Sequence[float]) -> None:
    import plotly.graph_objects as go

    assert isinstance(figure, go.Figure)
    for number, (ending, word) in enumerate((("complete", "whole"), ("pruned", "stopped early"))):
        chosen = [
            (place, trial)
            for place, trial in zip(x, trials, strict=True)
            if trial.ending == ending and trial.auc is not None
        ]
        figure.add_trace(
            go.Scatter(
                x=[place for place, _ in chosen],
                y=[trial.auc for _, trial in chosen],
                mode="markers",
                name=word,
                marker={
                    "color": SERIES[number],
                    "symbol": "circle" if ending == "complete" else "circle-open",
                },
                customdata=[
                    ", ".join(f"{WORDS[name]} {value:.3g}" for name, value in trial.values.items())
                    for _, trial in chosen
                ],
                text=[f"trial {trial.number}" for _, trial in chosen],
                hovertemplate="%{text}: %{y:.5f}<br>%{customdata}<extra></extra>",
            )
        )


def _values(result: SearchResult) -> Table:
    ordered = sorted(result.trials, key=lambda trial: trial.auc or 0.0, reverse=True)
    return Table(
        title="All trials",
        header=("trial", "valid AUC", "epochs", "ending", *(WORDS[name] for name in result.rule_values)),
        rows=[
            (
                str(trial.number),
                _auc(trial),
                str(trial.epochs),
                trial.ending,
                *(f"{trial.values[name]:.3g}" for name in result.rule_values),
            )
            for trial in ordered
        ],
        marked=[place for place, trial in enumerate(ordered) if is_the_rule(trial.factors)],
        caption="By valid AUC; the one that is set off is the rule's.",
        folded=True,
    )


def _auc(trial: Trial | None) -> str:
    return "none" if trial is None or trial.auc is None else f"{trial.auc:.5f}"
