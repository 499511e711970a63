"""The charts of a study: each shows one thing over batch sizes, a line for each rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stampede.workflows.page import MUTED, Chart, Choice, color, new_figure
from stampede.workflows.sweep.grid import Series
from stampede.workflows.sweep.table import Cell, Summary

if TYPE_CHECKING:
    import plotly.graph_objects as go

LARGEST_SPAN = {"auc": 0.03, "logloss": 0.06}
"""A chart shows no values that are worse than the base batch by more than this: they stand at its edge."""

NAMES = {"auc": "AUC", "logloss": "log loss"}

ROOM = 0.08
"""Share of the span that is left free above and below."""

MARGIN = 0.1
"""Powers of ten that are left free beside the smallest and the largest batch."""


@dataclass(frozen=True)
class _Place:
    """A cell's value in a chart: where it is drawn, how far it spreads, what the reader is told of it."""

    batch_size: int
    value: float
    spread: float | None
    text: str


def metric_chart(cells: Sequence[Cell], name: str, *, split: str, base: int) -> Chart:
    """Draw a metric over batch sizes."""
    at_base = [s.mean for cell in cells if cell.batch_size == base and (s := cell.metrics[name]) is not None]

    def place(cell: Cell) -> _Place | None:
        summary = cell.metrics[name]
        if summary is None:
            return None
        spread = "" if summary.deviation is None else f" ± {summary.deviation:.5f}"
        text = f"{NAMES[name]} {summary.mean:.5f}{spread}, {_seeds(summary)}"
        return _Place(cell.batch_size, summary.mean, summary.deviation, text)

    figure, notes = _lines(cells, place, y=f"{split} {NAMES[name]}", metric=name, level=at_base)
    better = "higher" if name == "auc" else "lower"
    return Chart(
        title=f"{NAMES[name]} by batch size",
        figure=figure,
        caption=f"The {split} {NAMES[name]} of the best epoch, {better} is better: the mean over seeds, and "
        f"one standard deviation to either side. A rule that holds keeps its line level. {notes}",
    )


def difference_chart(cells: Sequence[Cell], name: str, *, base: int) -> Chart:
    """Draw the paired differences to the base batch."""

    def place(cell: Cell) -> _Place | None:
        summary = cell.to_base[name]
        if summary is None:
            return None
        spread = "" if summary.error is None else f" ± {summary.error:.5f}"
        return _Place(
            cell.batch_size, summary.mean, summary.error, f"{summary.mean:+.5f}{spread}, {_seeds(summary)}"
        )

    figure, notes = _lines(cells, place, y=f"difference of {NAMES[name]}", metric=name, level=[0.0])
    figure.add_hline(y=0, line={"color": MUTED, "width": 1})
    return Chart(
        title=f"{NAMES[name]} against batch {base:,}",
        figure=figure,
        caption=f"Each seed's {NAMES[name]} minus that of the same seed at batch {base:,}: the mean, and one "
        f"standard error to either side. Where the bar crosses 0, these seeds show no difference. {notes}",
    )


def time_chart(cells: Sequence[Cell], *, target: float) -> Chart:
    """Draw how long training takes to the target: seconds where they were recorded, else epochs."""
    times = [cell.time_to_target for cell in cells]
    in_seconds = any(time is not None and time.seconds is not None for time in times)

    def place(cell: Cell) -> _Place | None:
        time = cell.time_to_target
        value = None if time is None else (time.seconds if in_seconds else time.epochs)
        if time is None or value is None:
            return None
        finished = cell.count("finished")
        text = f"{value:,.1f} {'s' if in_seconds else 'epochs'}, {time.reached} of {finished} seeds"
        return _Place(cell.batch_size, value, None, text)

    unit = "seconds of training" if in_seconds else "epochs"
    figure, _ = _lines(cells, place, y=unit)
    figure.update_yaxes(rangemode="tozero")
    missed = [cell for cell in cells if cell.count("finished") and place(cell) is None]
    late = ", ".join(f"{cell.series.label} at {cell.batch_size:,}" for cell in missed)
    return Chart(
        title="Time to the target AUC",
        figure=figure,
        caption=f"How long the training takes until an epoch ends with a valid AUC of {target:.5f} or more, "
        "as a mean over the seeds that get there; evaluation is not counted."
        + (f" None got there: {late}." if late else ""),
    )


def clipped_chart(cells: Sequence[Cell]) -> Chart | None:
    """Draw the share of table rows that is clipped; None where nothing clips."""
    clipping = [cell for cell in cells if cell.clipped_share is not None]
    if not clipping:
        return None

    def place(cell: Cell) -> _Place | None:
        if cell.clipped_share is None:
            return None
        share = 100 * cell.clipped_share
        text = f"{share:.3g}% of all rows of the tables"
        if cell.clipped_share_of_batch is not None:
            text += f", {100 * cell.clipped_share_of_batch:.3g}% of those in the batch"
        return _Place(cell.batch_size, share, None, text)

    figure, _ = _lines(clipping, place, y="clipped, % of the tables' rows")
    figure.update_yaxes(rangemode="tozero")
    return Chart(
        title="How much is clipped",
        figure=figure,
        caption="The share of the embedding tables' rows whose gradient is clipped at a step, as a mean over "
        "the run. A clip that acts on nothing changes nothing.",
    )


def frequency_charts(cells: Sequence[Cell]) -> Chart | Choice | None:
    """Draw the share that is clipped by how often an id occurs; None where it was not recorded."""
    import plotly.graph_objects as go

    charts = []
    for series in dict.fromkeys(cell.series for cell in cells):
        own = [cell for cell in cells if cell.series == series and cell.frequencies]
        if not own:
            continue
        figure = new_figure(x="occurrences of the id in training", y="clipped, %", x_type="category")
        for number, cell in enumerate(own):
            figure.add_trace(
                go.Scatter(
                    x=[_range(entry.first, entry.last) for entry in cell.frequencies],
                    y=[
                        100 * entry.clipped / entry.rows if entry.rows else None for entry in cell.frequencies
                    ],
                    name=f"{cell.batch_size:,}",
                    mode="lines+markers",
                    line={"color": color(number)},
                    customdata=[
                        "" if entry.mean_factor is None else f", mean factor {entry.mean_factor:.3f}"
                        for entry in cell.frequencies
                    ],
                    hovertemplate="batch "
                    + f"{cell.batch_size:,}"
                    + ": %{y:.2f}%%{customdata}<extra></extra>",
                )
            )
        charts.append(
            Chart(
                title=series.label,
                figure=figure,
                caption="Of the ids in a batch, the share whose gradient is clipped, by how often the id "
                "occurs in the training split; a line for each batch size.",
            )
        )
    title = "What is clipped, by frequency"
    if len(charts) < 2:
        return replace(charts[0], title=title) if charts else None
    return Choice(title, "Rule", charts)


def _lines(
    cells: Sequence[Cell],
    place: Callable[[Cell], _Place | None],
    *,
    y: str,
    metric: str | None = None,
    level: Sequence[float] = (),
) -> tuple[go.Figure, str]:
    """Draw a line for each series; return it with what its caption must say of marks at the edge.

    Parameters
    ----------
    metric, level:
        What is drawn, where it can be bad beyond measure, and its values at the base batch.
    """
    import plotly.graph_objects as go

    figure = new_figure(x="batch size (log scale)", y=y, x_type="log")
    sizes = sorted({cell.batch_size for cell in cells})
    ends = [math.log10(sizes[0]) - MARGIN, math.log10(sizes[-1]) + MARGIN]
    figure.update_xaxes(
        tickmode="array", tickvals=sizes, ticktext=[short(size) for size in sizes], range=ends
    )
    found = [(cell, place(cell)) for cell in cells]
    values = [one.value for _, one in found if one is not None]
    window = None if metric is None or not values else _window(values, metric=metric, level=level)
    outside = False
    for number, series in enumerate(dict.fromkeys(cell.series for cell in cells)):
        own = [one for cell, one in found if cell.series == series and one is not None]
        inside = [window is None or window[0] <= one.value <= window[1] for one in own]
        outside |= not all(inside)
        figure.add_trace(
            go.Scatter(
                x=[one.batch_size for one in own],
                y=[one.value if window is None else min(max(one.value, window[0]), window[1]) for one in own],
                error_y={
                    "type": "data",
                    "array": [
                        one.spread or 0.0 if seen else 0.0 for one, seen in zip(own, inside, strict=True)
                    ],
                    "thickness": 1,
                    "width": 3,
                },
                mode="lines+markers",
                name=series.label,
                line={"color": color(number)},
                marker={
                    "size": 8,
                    "symbol": [
                        "circle" if seen else _edge(one, window)
                        for one, seen in zip(own, inside, strict=True)
                    ],
                },
                customdata=[one.text for one in own],
                hovertemplate=f"{series.label}, batch %{{x:,}}: %{{customdata}}<extra></extra>",
            )
        )
    notes = ["Triangles at the edge stand for values beyond it: point at one to read it."] if outside else []
    if metric is not None and (lost := _lost(cells)):
        _mark_lost(figure, lost, window)
        notes.append("A cross marks runs that diverged.")
    if window is not None:
        room = ROOM * (window[1] - window[0])
        figure.update_yaxes(range=[window[0] - room, window[1] + room])
    return figure, " ".join(notes)


def _window(values: Sequence[float], *, metric: str, level: Sequence[float]) -> tuple[float, float]:
    """Return the least and the greatest value to show."""
    limit, low, high = LARGEST_SPAN[metric], min([*values, *level]), max([*values, *level])
    if metric == "auc":
        low = max(low, min(level, default=high) - limit)
    else:
        high = min(high, max(level, default=low) + limit)
    return (low, high) if high > low else (low - limit / 10, high + limit / 10)


def _edge(one: _Place, window: tuple[float, float] | None) -> str:
    return "triangle-down" if window is not None and one.value < window[0] else "triangle-up"


def _lost(cells: Sequence[Cell]) -> list[tuple[int, Cell]]:
    """Return the cells with runs that diverged, with the number of their series."""
    series: list[Series] = list(dict.fromkeys(cell.series for cell in cells))
    return [(series.index(cell.series), cell) for cell in cells if cell.count("diverged")]


def _mark_lost(
    figure: go.Figure, lost: Sequence[tuple[int, Cell]], window: tuple[float, float] | None
) -> None:
    import plotly.graph_objects as go

    figure.add_trace(
        go.Scatter(
            x=[cell.batch_size for _, cell in lost],
            y=[0.0 if window is None else window[0]] * len(lost),
            mode="markers",
            name="diverged",
            marker={"symbol": "x", "size": 10, "color": [color(number) for number, _ in lost]},
            customdata=[
                f"{cell.series.label}, batch {cell.batch_size:,}: {cell.count('diverged')} of "
                f"{len(cell.points)} seeds diverged"
                for _, cell in lost
            ],
            hovertemplate="%{customdata}<extra></extra>",
        )
    )


def short(size: int) -> str:
    """Write a batch size as 8K where it is a whole number of 1024s."""
    return f"{size // 1024}K" if size % 1024 == 0 else f"{size:,}"


def _range(first: int, last: int | None) -> str:
    return f"{first:,}+" if last is None else (f"{first:,}" if first == last else f"{first:,}-{last:,}")


def _seeds(summary: Summary) -> str:
    return "1 seed" if summary.n == 1 else f"{summary.n} seeds"
