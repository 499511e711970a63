"""How good the scores of a split are: calibration, separation of the classes, and metrics by frequency."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from stampede.workflows.page import (
    MUTED,
    Block,
    Chart,
    Choice,
    Facts,
    Note,
    Section,
    Table,
    color,
    new_figure,
)
from stampede.workflows.reporting.scored import (
    CODE_NAMES,
    Group,
    ScoreBin,
    ScoredRows,
    entropy,
    quantile_bins,
    standard_error,
)
from stampede.workflows.reporting.text import metric, share, whole

if TYPE_CHECKING:
    import plotly.graph_objects as go

CALIBRATION_BINS = 20
HISTOGRAM_BINS = 50
NORMAL_95 = 1.96

FEWEST_OF_A_CLASS = 10
"""Of clicks and of other rows: with fewer, the metrics of a group say nothing."""


def quality(scored: ScoredRows) -> Section:
    """Return the section on a scored split."""
    metrics = scored.metrics
    blocks: list[Block] = [_facts(scored)]
    if metrics.auc is None:
        blocks.append(Note("All rows of the split are of one class, so its AUC is undefined."))
    bins = quantile_bins(scored, bins=CALIBRATION_BINS)
    if bins:
        blocks += [_calibration(bins), _histogram(scored)]
        blocks.append(
            _grouped(
                "By the rarest value of the row",
                scored.groups(scored.rarest),
                scored,
                "Rows grouped by how often their least frequent value occurs in the training split. A "
                "model that learns rare ids well holds its AUC towards the left; bars are 95% intervals.",
            )
        )
        blocks.append(
            Choice(
                "By the frequency of a field's value",
                "Field",
                [
                    _grouped(
                        name,
                        scored.groups(codes),
                        scored,
                        f"Rows grouped by how often their value of {name} occurs in the training split; "
                        "“empty” has none. Bars are 95% intervals, so do not read much into a point with "
                        "a long one.",
                    )
                    for name, codes in zip(scored.fields, scored.codes, strict=True)
                ],
            )
        )
        blocks.append(_table(bins))
    return Section(
        f"Scores on the {scored.split} split",
        f"The weights of the best epoch on the {whole(metrics.rows)} rows of the {scored.split} split, all "
        "metrics exact.",
        blocks,
    )


def _facts(scored: ScoredRows) -> Facts:
    metrics = scored.metrics
    rate, score = metrics.click_rate, metrics.mean_score
    constant = None if rate is None else entropy(rate)
    gain = None if not constant or metrics.logloss is None else 1 - metrics.logloss / constant
    ratio = None if not rate or score is None else score / rate
    return Facts(
        [
            ("AUC", metric(metrics.auc, digits=5)),
            (
                "Log loss",
                metric(metrics.logloss, digits=5),
                f"{metric(constant, digits=5)} if all rows had one score",
            ),
            ("Information gain", share(gain), "how far the log loss is below that"),
            ("Rows", whole(metrics.rows)),
            ("Click rate", share(rate)),
            ("Mean score", share(score), "" if ratio is None else f"{ratio:.3f} of the click rate"),
        ]
    )


def _calibration(bins: Sequence[ScoreBin]) -> Chart:
    x = [part.mean_score for part in bins]
    y = [part.click_rate for part in bins]
    error = [NORMAL_95 * float(np.sqrt(p.click_rate * (1 - p.click_rate) / p.rows)) for p in bins]
    top = 1.04 * max(*x, *(rate + bar for rate, bar in zip(y, error, strict=True)), 1e-6)
    figure = new_figure(x="mean score", y="click rate")
    figure.add_scatter(
        x=[0, top],
        y=[0, top],
        mode="lines",
        name="perfect",
        line={"color": MUTED, "width": 1.2, "dash": "dash"},
        hoverinfo="skip",
    )
    figure.add_scatter(
        x=x,
        y=y,
        name="this model",
        mode="lines+markers",
        line={"color": color(0), "width": 2},
        marker={"size": 7},
        error_y={"array": error, "thickness": 1, "width": 2},
        customdata=[[part.rows, part.lowest, part.highest] for part in bins],
        hovertemplate="scores %{customdata[1]:.4f} to %{customdata[2]:.4f}<br>mean score %{x:.4f}<br>"
        "click rate %{y:.4f}<br>%{customdata[0]:,} rows<extra></extra>",
    )
    figure.update_xaxes(range=[0, top])
    figure.update_yaxes(range=[0, top])
    return Chart(
        "Calibration",
        figure,
        f"Rows in {len(bins)} bins of about {bins[len(bins) // 2].rows:,} rows by their score. On the "
        "dashed line a score is a click rate; points above it are scored too low, points below too high. "
        "Bars are 95% intervals.",
        height=380,
    )


def _histogram(scored: ScoredRows) -> Chart:
    figure = new_figure(x="score", y="share of the class's rows", barmode="overlay", bargap=0)
    edges = np.linspace(0, 1, HISTOGRAM_BINS + 1)
    for name, chosen, line in (("no click", ~scored.labels, color(0)), ("click", scored.labels, color(1))):
        counts, _ = np.histogram(scored.scores[chosen], edges)
        if counts.sum():
            figure.add_bar(
                x=(edges[:-1] + edges[1:]) / 2,
                y=counts / counts.sum(),
                width=1 / HISTOGRAM_BINS,
                name=name,
                showlegend=True,
                marker={"color": line, "line": {"width": 0}},
                opacity=0.6,
                customdata=counts,
                hovertemplate=f"{name}, score about %{{x:.2f}}<br>%{{y:.2%}}, %{{customdata:,}} "
                "rows<extra></extra>",
            )
    figure.update_yaxes(tickformat=".2~%")
    highest = float(scored.scores[-1])
    figure.update_xaxes(range=[0, min(1.0, np.ceil(highest * 20) / 20 + 0.01)])
    return Chart(
        "Scores by class",
        figure,
        "How the scores of clicked rows and of the others spread, each class taken as a whole. The less "
        "the two overlap, the higher the AUC.",
        height=380,
    )


def _grouped(title: str, groups: Sequence[Group], scored: ScoredRows, caption: str) -> Chart:
    """Draw AUC, log loss and share of rows of some groups above each other, on one axis."""
    names = [group.name for group in groups]
    judged = [g for g in groups if min(g.clicks, g.rows - g.clicks) >= FEWEST_OF_A_CLASS]
    figure = new_figure(x="training count of the value", y="AUC", x_type="category")
    bars = [0.0 if g.auc is None else standard_error(g.auc, g.clicks, g.rows - g.clicks) for g in judged]
    points = {"mode": "markers", "showlegend": False, "hovertemplate": "%{x}: %{text}<extra></extra>"}
    figure.add_scatter(
        x=[group.name for group in judged],
        y=[group.auc for group in judged],
        text=[_in_words(group) for group in judged],
        marker={"size": 9, "color": color(0)},
        error_y={"array": [NORMAL_95 * bar for bar in bars], "thickness": 1.2, "width": 3},
        **points,
    )
    figure.add_scatter(
        x=[group.name for group in judged],
        y=[entropy(group.click_rate) for group in judged],
        yaxis="y2",
        mode="markers",
        hoverinfo="skip",
        marker={"size": 13, "color": MUTED, "symbol": "line-ew-open", "line": {"width": 2}},
        showlegend=True,
        name="log loss of the group's click rate",
    )
    figure.add_scatter(
        x=[group.name for group in judged],
        y=[group.logloss for group in judged],
        yaxis="y2",
        text=[_in_words(group) for group in judged],
        marker={"size": 9, "color": color(1)},
        **points,
    )
    figure.add_bar(
        x=names,
        y=[group.rows / len(scored.labels) for group in groups],
        yaxis="y3",
        text=[_in_words(group) for group in groups],
        textposition="none",
        marker={"color": MUTED},
        opacity=0.6,
        showlegend=False,
        hovertemplate="%{x}: %{text}<extra></extra>",
    )
    _stack(figure, [name for name in CODE_NAMES if name in names])
    if scored.metrics.auc is not None:
        _level(figure, scored.metrics.auc, "y")
    if scored.metrics.logloss is not None:
        _level(figure, scored.metrics.logloss, "y2")
    left_out = (
        ""
        if len(judged) == len(groups)
        else f" Groups with fewer than {FEWEST_OF_A_CLASS} clicks or other rows have a bar alone."
    )
    return Chart(title, figure, f"{caption} Dashed lines are all rows together.{left_out}", height=460)


def _in_words(group: Group) -> str:
    return (
        f"{group.rows:,} rows, click rate {group.click_rate:.4f}<br>"
        f"AUC {metric(group.auc, digits=5)}, log loss {metric(group.logloss, digits=5)}"
    )


def _stack(figure: go.Figure, names: Sequence[str]) -> None:
    """Give the three parts of a grouped chart their places, and one axis of names below."""
    figure.update_layout(
        xaxis={"anchor": "y3", "categoryorder": "array", "categoryarray": list(names), "tickangle": -35},
        yaxis={"domain": [0.64, 1.0], "title": {"text": "AUC"}},
        yaxis2={"domain": [0.24, 0.57], "title": {"text": "log loss"}},
        yaxis3={"domain": [0.0, 0.17], "title": {"text": "rows"}, "tickformat": ".0%", "nticks": 3},
    )


def _level(figure: go.Figure, value: float, axis: str) -> None:
    figure.add_shape(
        type="line",
        xref="paper",
        x0=0,
        x1=1,
        yref=axis,
        y0=value,
        y1=value,
        line={"color": MUTED, "width": 1, "dash": "dash"},
    )


def _table(bins: Sequence[ScoreBin]) -> Table:
    return Table(
        ["scores", "rows", "mean score", "click rate"],
        [
            [
                f"{part.lowest:.4f} – {part.highest:.4f}",
                f"{part.rows:,}",
                f"{part.mean_score:.4f}",
                f"{part.click_rate:.4f}",
            ]
            for part in bins
        ],
        title="Calibration in numbers",
        folded=True,
    )
