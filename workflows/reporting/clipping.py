"""What clipping did: how many rows it shortened, and of which ids."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stampede.training.config import TrainConfig
from stampede.workflows.page import MUTED, Block, Chart, Note, Section, color, names_on_y, new_figure
from stampede.workflows.reporting.curves import add_epochs, thinned
from stampede.workflows.reporting.history import History, TablesRecord
from stampede.workflows.reporting.text import bounds

if TYPE_CHECKING:
    import plotly.graph_objects as go

COWCLIP_TEXT = (
    "CowClip shortens the gradient of an id's embedding row where it is longer than a threshold of that "
    "row's own: r · c · max(‖w‖, r · √d · ζ), with c the number of times the id occurs in the batch. The "
    "threshold grows with c, so an id may move by about the size of its own weights for each of its rows, "
    "be it frequent or rare: this is how CowClip keeps large batches stable.\n\nThe clip factor is min(1, "
    "threshold / gradient norm): 1 leaves the gradient as it is, 0.1 shortens it to a tenth."
)
SHOWN_FIELDS = 14

OTHER_TEXT = (
    "What the clip did to the gradients of the embedding rows. A factor of 1 leaves a gradient as it is."
)


@dataclass(frozen=True)
class FrequencyRange:
    """Ids that occur so often in the training split, over some steps.

    ``rows`` counts an id once for each of those steps whose batch had it; ``factor`` is the mean clip factor.
    """

    lower: int
    upper: int | None
    rows: int
    clipped: int
    factor: float | None

    @property
    def label(self) -> str:
        """The range as on an axis."""
        return bounds(self.lower, self.upper)


def over_steps(records: Iterable[TablesRecord]) -> list[FrequencyRange]:
    """Add the frequency bins of some steps up; the mean factor of a bin counts by its rows."""
    rows: dict[tuple[int, int | None], int] = defaultdict(int)
    clipped: dict[tuple[int, int | None], int] = defaultdict(int)
    factors: dict[tuple[int, int | None], float] = defaultdict(float)
    for record in records:
        for part in record.frequency or ():
            key = (part.lower, part.upper)
            rows[key] += part.rows
            clipped[key] += part.clipped
            factors[key] += part.rows * (1.0 if part.mean_factor is None else part.mean_factor)
    return [
        FrequencyRange(*key, rows[key], clipped[key], factors[key] / rows[key] if rows[key] else None)
        for key in sorted(rows, key=lambda key: key[0])
    ]


def clipping(history: History, config: TrainConfig) -> Section:
    """Return the section on clipping."""
    cowclip = config.clip == "cowclip"
    title = "CowClip" if cowclip else "Clipping"
    if config.clip == "none":
        return Section(
            title, "", [Note("This run clips nothing (--clip none), so there is nothing to show here.")]
        )
    blocks: list[Block] = []
    measured = [record for record in history.tables if record.frequency]
    if measured:
        blocks += _by_frequency(measured)
    else:
        blocks.append(
            Note(
                "The run has no records of clipping by frequency: it was made by an older version, or "
                "ended early."
            )
        )
    if any(record.clipped_share is not None for record in history.steps) or measured:
        blocks.append(_over_time(history, measured))
    if any(norms.clipped is not None for record in measured for norms in record.fields.values()):
        blocks.append(_by_field(measured))
    return Section(title, COWCLIP_TEXT if cowclip else OTHER_TEXT, blocks)


def _by_frequency(records: Sequence[TablesRecord]) -> list[Block]:
    first, last = records[0].epoch, records[-1].epoch
    lines = [("whole run", over_steps(records), color(0), 3.0, "solid")]
    if first != last:
        lines += [
            (f"epoch {first}", over_steps(r for r in records if r.epoch == first), color(1), 1.7, "dash"),
            (f"epoch {last}", over_steps(r for r in records if r.epoch == last), color(2), 1.7, "dot"),
        ]
    factor = new_figure(x="training count of the id", y="mean clip factor", x_type="category")
    share = new_figure(x="training count of the id", y="ids clipped", x_type="category")
    for name, parts, line, width, dash in lines:
        kept = [part for part in parts if part.rows]
        style = {"color": line, "width": width, "dash": dash}
        for figure, values, words in (
            (factor, [part.factor for part in kept], "factor %{y:.4f}"),
            (share, [part.clipped / part.rows for part in kept], "%{y:.2%} clipped"),
        ):
            figure.add_scatter(
                x=[part.label for part in kept],
                y=values,
                customdata=[part.rows for part in kept],
                name=name,
                mode="lines+markers",
                showlegend=len(lines) > 1,
                line=style,
                marker={"size": 7},
                hovertemplate=f"{name}, ids with %{{x}} rows<br>{words}<br>of %{{customdata:,}} "
                "ids<extra></extra>",
            )
    for figure in (factor, share):
        _add_sizes(figure, lines[0][1])
    factors = [part.factor for _, parts, *_ in lines for part in parts if part.factor is not None]
    lowest = min(factors, default=1.0)
    room = 1.0 if lowest < 0.6 else 1.2 * (1 - lowest) + 0.001
    factor.update_layout(yaxis={"range": [1 - room, 1 + 0.05 * room]})
    share.update_layout(yaxis={"tickformat": ".3~%", "rangemode": "tozero"})
    steps = f"over {len(records)} steps of the run"
    return [
        Chart(
            "Clip factor by id frequency",
            factor,
            f"Mean factor of the ids of a batch, {steps}, from the rarest ids on the left to the most "
            "frequent on the right. The lower a point, the more the gradients of such ids were shortened; "
            "grey bars say how many of the ids are there.",
            height=430,
        ),
        Chart(
            "Share of ids clipped by id frequency",
            share,
            f"Of the ids of a batch, how many were clipped at all, {steps}. Read together with the factor: "
            "many ids clipped by little is a light hand, few by much is a hand on the outliers.",
            height=430,
        ),
    ]


def _add_sizes(figure: go.Figure, parts: Sequence[FrequencyRange]) -> None:
    """Add bars below that say how many of the ids are in each range."""
    whole = sum(part.rows for part in parts)
    labels = [part.label for part in parts]
    figure.add_bar(
        x=labels,
        y=[part.rows / max(whole, 1) for part in parts],
        yaxis="y2",
        customdata=[part.rows for part in parts],
        marker={"color": MUTED},
        opacity=0.6,
        showlegend=False,
        hovertemplate="%{x}: %{y:.2%} of the ids (%{customdata:,})<extra></extra>",
    )
    figure.update_layout(
        xaxis={"anchor": "y2", "categoryorder": "array", "categoryarray": labels, "tickangle": -40},
        yaxis={"domain": [0.32, 1.0]},
        yaxis2={"domain": [0.0, 0.2], "title": {"text": "ids"}, "tickformat": ".0%", "nticks": 3},
    )


def _over_time(history: History, measured: Sequence[TablesRecord]) -> Chart:
    figure = new_figure(x="step", y="share clipped", hovermode="x unified")
    steps = [record for record in history.steps if record.clipped_share is not None]
    if steps:
        x, y = thinned([r.step for r in steps], [r.clipped_share or 0.0 for r in steps])
        figure.add_scatter(
            x=x,
            y=y,
            name="of all rows of the tables",
            showlegend=True,
            line={"color": MUTED, "width": 1.5},
            hovertemplate="%{y:.3~%}",
        )
    if measured:
        clipped = [sum(part.clipped for part in record.frequency or ()) for record in measured]
        rows = [sum(part.rows for part in record.frequency or ()) for record in measured]
        figure.add_scatter(
            x=[record.step for record in measured],
            y=[part / whole if whole else None for part, whole in zip(clipped, rows, strict=True)],
            name="of the ids in the batch",
            showlegend=True,
            line={"color": color(0), "width": 2.2},
            hovertemplate="%{y:.3~%}",
        )
    figure.update_yaxes(tickformat=".3~%", rangemode="tozero")
    add_epochs(figure, history)
    return Chart(
        "Share of rows clipped by step",
        figure,
        "How many embedding rows a step clips. Most rows of the tables are not in a batch; their gradient "
        "is the L2 term alone, so the share of all rows is another number than that of the ids in the "
        "batch.",
    )


def _by_field(records: Sequence[TablesRecord]) -> Chart:
    rows: dict[str, int] = defaultdict(int)
    clipped: dict[str, int] = defaultdict(int)
    for record in records:
        for name, norms in record.fields.items():
            rows[name] += norms.rows
            clipped[name] += norms.clipped or 0
    shares = {name: clipped[name] / rows[name] for name in rows if rows[name]}
    names = sorted(shares, key=lambda name: shares[name])[-SHOWN_FIELDS:]
    figure = new_figure(x="ids clipped", y="", y_type="category")
    figure.add_bar(
        x=[shares[name] for name in names],
        y=names,
        orientation="h",
        marker_color=color(0),
        customdata=[rows[name] for name in names],
        hovertemplate="%{y}: %{x:.2%} of %{customdata:,} ids<extra></extra>",
        showlegend=False,
    )
    figure.update_xaxes(tickformat=".3~%")
    names_on_y(figure, names)
    return Chart(
        "Fields clipped most",
        figure,
        f"Share of ids clipped over the whole run, the {len(names)} fields of {len(shares)} with the "
        "largest. A field stands out where it has many rare values, or where its embeddings must move far.",
    )
