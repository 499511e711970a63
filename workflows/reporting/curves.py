"""How training went: losses, metrics of the epochs, rates and speed by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stampede.workflows.page import MUTED, Block, Chart, Note, Section, color, new_figure
from stampede.workflows.reporting.history import EpochRecord, History
from stampede.workflows.reporting.text import metric

if TYPE_CHECKING:
    import plotly.graph_objects as go

Values = NDArray[np.float64]

POINTS = 3000
"""Most points of a line: more are not seen, and make the page slow."""

SMOOTHED_SHARE = 0.03
"""Share of the records over which a smoothed line forgets by 1/e."""


def curves(history: History) -> Section:
    """Return the section on training."""
    blocks: list[Block] = []
    if history.steps:
        blocks += [_cross_entropy(history), _regulariser(history)]
    blocks += _validation(history.epochs)
    if history.steps:
        blocks.append(_rates(history))
    if history.timings:
        blocks.append(_speed(history))
    else:
        blocks.append(Note("Speed: the run has no timings.jsonl, so rows a second are not known."))
    return Section(
        "Training",
        "How the run went, step by step. The cross-entropy is what the model is trained on, a mean over "
        "the rows since the point before; AUC and log loss are measured on rows that it was not trained "
        "on.",
        blocks,
    )


def smoothed(values: Sequence[float]) -> Values:
    """Return the running mean of values, each with the weight exp(-distance), early ones unbiased.

    Values that are not finite are passed over.
    """
    decay = np.exp(-1 / max(SMOOTHED_SHARE * len(values), 1.0))
    means = np.full(len(values), np.nan)
    total = weight = 0.0
    for index, value in enumerate(values):
        if np.isfinite(value):
            total = decay * total + (1 - decay) * value
            weight = decay * weight + (1 - decay)
        if weight > 0:
            means[index] = total / weight
    return means


def thinned(x: Sequence[float], *lines: Sequence[float] | Values) -> tuple[Values, ...]:
    """Return points of some lines, evenly chosen where there are many, the last one always."""
    chosen = np.unique(np.linspace(0, len(x) - 1, min(len(x), POINTS)).astype(np.int64))
    return tuple(np.asarray(line, np.float64)[chosen] for line in (x, *lines))


def add_epochs(figure: go.Figure, history: History) -> None:
    """Mark the ends of epochs but the last as thin lines, where there are few enough to be told apart."""
    ends = [record.step for record in history.epochs][:-1]
    if 0 < len(ends) <= 20:
        for step in ends:
            figure.add_vline(x=step, line={"color": MUTED, "width": 1, "dash": "dot"}, opacity=0.5)


def _cross_entropy(history: History) -> Chart:
    raw = [np.nan if r.cross_entropy is None else r.cross_entropy for r in history.steps]
    steps, values, means = thinned([record.step for record in history.steps], raw, smoothed(raw))
    figure = new_figure(x="step", y="cross-entropy", hovermode="x unified")
    figure.add_scatter(x=steps, y=values, name="each record", line={"color": MUTED, "width": 1}, opacity=0.7)
    figure.add_scatter(x=steps, y=means, name="smoothed", line={"color": color(0), "width": 2.5})
    add_epochs(figure, history)
    return Chart(
        "Training cross-entropy",
        figure,
        "Lower is better. Dotted lines are the ends of epochs: a step down there means that rows seen "
        "before are remembered, which is where over-fitting begins.",
    )


def _regulariser(history: History) -> Chart:
    values = [np.nan if r.regulariser is None else r.regulariser for r in history.steps]
    steps, values_shown = thinned([record.step for record in history.steps], values)
    figure = new_figure(x="step", y="λ · sum of squares")
    figure.add_scatter(x=steps, y=values_shown, line={"color": color(4), "width": 2}, showlegend=False)
    figure.update_yaxes(rangemode="tozero")
    add_epochs(figure, history)
    return Chart(
        "Regulariser",
        figure,
        "The L2 term of the embedding tables, which is added to the cross-entropy. It grows while the tables "
        "learn; a level line means that learning and decay are in balance.",
    )


def _validation(epochs: Sequence[EpochRecord]) -> list[Block]:
    if not epochs:
        return [Note("No epoch has ended yet, so there are no metrics of epochs.")]
    if all(record.valid is None for record in epochs):
        return [Note("The dataset has no valid split, so there are no metrics by epoch.")]
    best = [record for record in epochs if record.best][-1:]
    best_words = f"Epoch {best[0].epoch} is the best and the one that is kept" if best else "No epoch is best"
    auc = {r.epoch: r.valid.auc for r in epochs if r.valid is not None and r.valid.auc is not None}
    loss = {r.epoch: r.valid.logloss for r in epochs if r.valid is not None and r.valid.logloss is not None}
    best_epoch = best[0].epoch if best else None
    blocks: list[Block] = []
    if auc:
        figure = _by_epoch(auc, "AUC", best_epoch, color(0))
        words = "Higher is better: the chance that a click is scored above a row without one."
        blocks.append(Chart("Valid AUC by epoch", figure, f"{words} {best_words}."))
    else:
        blocks.append(Note("The valid split has rows of one class only, so its AUC is undefined."))
    if loss:
        figure = _by_epoch(loss, "log loss", best_epoch, color(1))
        words = "Lower is better. Where it rises while the AUC holds, scores become too sure of themselves."
        blocks.append(Chart("Valid log loss by epoch", figure, f"{words} {best_words}."))
    return blocks


def _by_epoch(values: dict[int, float], name: str, best: int | None, line: str) -> go.Figure:
    figure = new_figure(x="epoch", y=name)
    figure.add_scatter(
        x=list(values),
        y=list(values.values()),
        mode="lines+markers",
        line={"color": line, "width": 2},
        marker={"size": 7},
        hovertemplate=f"epoch %{{x}}<br>{name} %{{y:.5f}}<extra></extra>",
        showlegend=False,
    )
    if best in values:
        figure.add_scatter(
            x=[best],
            y=[values[best]],
            mode="markers",
            marker={"size": 15, "color": line, "symbol": "circle-open", "line": {"width": 2.5}},
            hoverinfo="skip",
            name=f"best: {metric(values[best], digits=5)}",
            showlegend=True,
        )
    ticks: dict[str, Any] = {"tickmode": "array", "tickvals": list(values)} if len(values) <= 15 else {}
    figure.update_xaxes(range=[min(values) - 0.4, max(values) + 0.4], **ticks)
    return figure


def _rates(history: History) -> Chart:
    names = list(dict.fromkeys(name for record in history.steps for name in record.learning_rates))
    steps = [record.step for record in history.steps]
    alike: dict[tuple[float | None, ...], list[str]] = {}
    for name in names:
        of_steps = (record.learning_rates.get(name) for record in history.steps)
        alike.setdefault(tuple(rate or None for rate in of_steps), []).append(name.replace("_", " "))
    rates = [rate for values in alike for rate in values if rate is not None]
    far_apart = bool(rates) and max(rates) > 20 * min(rates)
    figure = new_figure(
        x="step", y="learning rate", y_type="log" if far_apart else "linear", hovermode="x unified"
    )
    figure.update_yaxes(exponentformat="power", **({"dtick": 1} if far_apart else {"rangemode": "tozero"}))
    for number, (values, named) in enumerate(alike.items()):
        x, y = thinned(steps, [np.nan if value is None else value for value in values])
        figure.add_scatter(
            x=x,
            y=y,
            name=", ".join(named),
            showlegend=True,
            line={"color": color(number), "width": 2},
            hovertemplate="%{y:.3g}",
        )
    add_epochs(figure, history)
    return Chart(
        "Learning rates",
        figure,
        "The rates of the dense weights, which warm up, and of the tables"
        f"{', on a logarithmic axis' if far_apart else ''}.",
    )


def _speed(history: History) -> Chart:
    rows = np.diff([0, *(record.rows for record in history.timings)])
    seconds = np.diff([0.0, *(record.seconds for record in history.timings)])
    with np.errstate(divide="ignore", invalid="ignore"):
        speed = np.where((seconds > 0) & (rows > 0), rows / seconds, np.nan)
    steps, values = thinned([record.step for record in history.timings], speed)
    figure = new_figure(x="step", y="rows/s")
    figure.add_scatter(
        x=steps, y=values, line={"color": color(2), "width": 2}, name="rows/s", showlegend=False
    )
    mean = history.rows_per_second
    if mean is not None:
        figure.add_scatter(
            x=[steps[0], steps[-1]],
            y=[mean, mean],
            mode="lines",
            line={"color": MUTED, "width": 1.2, "dash": "dash"},
            name=f"whole run: {mean:,.0f}",
            showlegend=True,
            hoverinfo="skip",
        )
    figure.update_yaxes(rangemode="tozero")
    add_epochs(figure, history)
    return Chart(
        "Speed",
        figure,
        "Rows trained a second between two records, evaluation not included. The first steps are slow where "
        "kernels are compiled; a dip later means that the machine had other work or waited for data.",
    )
