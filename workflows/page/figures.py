"""Figures in the look of the page: their colours are names that the page resolves to those of its theme."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    import plotly.graph_objects as go

SERIES: Final = tuple(f"var(--series-{number})" for number in range(1, 9))
"""Colours of lines and bars that stand beside each other, told apart in both themes."""

INK: Final = "var(--ink)"
"""The colour of text, for a line that matters."""

MUTED: Final = "var(--muted)"
"""The colour of what stays in the background, such as a reference line."""

SURFACE: Final = "var(--surface)"
"""The colour behind a chart."""

SCALE_STEPS: Final = 5

LONGEST_NAME = 14


def color(number: int) -> str:
    """Return the colour of the series with this number, from 0; they repeat after eight."""
    return SERIES[number % len(SERIES)]


def names_on_y(figure: go.Figure, names: Sequence[str]) -> None:
    """Label every category of the y axis in small letters; long names are cut, and whole where one points."""
    short = [name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…" for name in names]
    figure.update_yaxes(
        tickmode="array",
        tickvals=list(range(len(names))),
        ticktext=short,
        tickfont={"size": 10},
        ticks="",
        title=None,
        categoryorder="array",
        categoryarray=list(names),
    )


def sequential() -> list[list[float | str]]:
    """Return a colour scale from few (close to the surface) to many, for heatmaps and markers."""
    return [[step / (SCALE_STEPS - 1), f"var(--scale-{step + 1})"] for step in range(SCALE_STEPS)]


def new_figure(
    *,
    x: str,
    y: str,
    x_type: Literal["linear", "log", "category"] = "linear",
    y_type: Literal["linear", "log", "category"] = "linear",
    **layout: Any,
) -> go.Figure:
    """Begin a figure.

    Parameters
    ----------
    x, y:
        Titles of the axes, with their units.
    layout:
        Further values of the layout, as of ``plotly.graph_objects.Layout``.
    """
    import plotly.graph_objects as go

    figure = go.Figure(
        layout={
            "xaxis": {"title": {"text": x}, "type": x_type},
            "yaxis": {"title": {"text": y}, "type": y_type},
        }
    )
    figure.update_layout(**layout)
    return figure
