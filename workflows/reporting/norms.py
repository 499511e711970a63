"""Norms of gradients and weights by field, and of the dense weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from stampede.workflows.page import Block, Chart, Note, Section, color, names_on_y, new_figure, sequential
from stampede.workflows.reporting.curves import add_epochs
from stampede.workflows.reporting.history import History, TablesRecord

COLUMNS = 160
"""Most steps of a heatmap: more are narrower than a pixel on a phone."""

HEAD = 90
PIXELS_PER_FIELD = 15


def norms(history: History) -> Section:
    """Return the section on norms."""
    records = history.tables
    if not records:
        return Section(
            "Gradients and weights",
            "",
            [Note("The run has no records of norms: it was made by an older version, or ended early.")],
        )
    blocks: list[Block] = [
        _heatmap(
            records,
            "gradient_norm",
            "Gradient norm by field",
            "Norm of the gradient of each field's table over the rows of a batch, L2 included, before the "
            "clip. Darker (lighter in the dark theme) is larger, on a logarithmic scale; the field with "
            "the largest is at the top.",
        ),
        _heatmap(
            records,
            "weight_norm",
            "Weight norm by field",
            "Norm of each field's whole table. A row of the picture that grows without "
            "end is a field whose L2 is too weak; one that fades is a field that the model makes no use "
            "of.",
        ),
    ]
    if any(record.dense is not None for record in records):
        blocks += [
            _dense(history, "gradient_norm", "Gradient norm of the dense weights", color(1)),
            _dense(history, "weight_norm", "Norm of the dense weights", color(3)),
        ]
    return Section(
        "Gradients and weights",
        f"Measured at {len(records)} steps of the run, each over the rows of one batch and before its "
        "update.",
        blocks,
    )


def _heatmap(
    records: Sequence[TablesRecord], name: Literal["gradient_norm", "weight_norm"], title: str, caption: str
) -> Chart:
    chosen = np.unique(np.linspace(0, len(records) - 1, min(len(records), COLUMNS)).astype(np.int64))
    shown = [records[index] for index in chosen]
    fields = list(dict.fromkeys(field for record in shown for field in record.fields))
    values = np.array(
        [[getattr(r.fields[f], name) if f in r.fields else np.nan for r in shown] for f in fields], np.float64
    )
    values[~(values > 0)] = np.nan  # a norm of 0 has no place on a logarithmic scale
    logs = np.log10(values)
    means = [float(np.nanmean(row)) if np.isfinite(row).any() else -np.inf for row in logs]
    order = np.argsort(means, kind="stable")
    figure = new_figure(x="step", y="", y_type="category")
    finite = logs[np.isfinite(logs)]
    ticks = _ticks(float(finite.min()), float(finite.max())) if len(finite) else [0.0]
    figure.add_heatmap(
        x=[f"{record.step:,}" for record in shown],
        y=[fields[index] for index in order],
        z=logs[order],
        customdata=values[order],
        colorscale=sequential(),
        colorbar={"tickvals": ticks, "ticktext": [f"{10**tick:.2g}" for tick in ticks], "thickness": 10},
        hovertemplate="%{y}, step %{x}<br>norm %{customdata:.4g}<extra></extra>",
        hoverongaps=False,
        xgap=0,
        ygap=1,
    )
    figure.update_xaxes(type="category", nticks=6, tickangle=0, showgrid=False)
    names_on_y(figure, [fields[index] for index in order])
    figure.update_yaxes(showgrid=False)
    return Chart(title, figure, caption, height=max(320, HEAD + PIXELS_PER_FIELD * len(fields)))


def _ticks(lowest: float, highest: float) -> list[float]:
    """Return powers of ten, as exponents, between two exponents; halves where there are few whole ones."""
    whole = [float(exponent) for exponent in range(int(np.ceil(lowest)), int(np.floor(highest)) + 1)]
    if len(whole) >= 3:
        return whole[:: max(1, len(whole) // 5)]
    return [lowest + (highest - lowest) * step / 3 for step in range(4)] if highest > lowest else [lowest]


def _dense(history: History, name: Literal["gradient_norm", "weight_norm"], title: str, line: str) -> Chart:
    records = [record for record in history.tables if record.dense is not None]
    figure = new_figure(x="step", y="norm")
    figure.add_scatter(
        x=[record.step for record in records],
        y=[getattr(record.dense, name) for record in records],
        line={"color": line, "width": 2},
        showlegend=False,
        hovertemplate="step %{x:,}<br>norm %{y:.4g}<extra></extra>",
    )
    figure.update_yaxes(rangemode="tozero")
    add_epochs(figure, history)
    caption = (
        "All weights of the network besides the tables, together. Spikes that last mean that the rate is "
        "too high."
        if name == "gradient_norm"
        else "All weights of the network besides the tables, together. It grows while the network learns."
    )
    return Chart(title, figure, caption)
