"""What a run was made with: its configuration beside the nearest recipe's, and its dataset."""

from __future__ import annotations

from typing import Any

import numpy as np

from stampede import ConfigError
from stampede.pipeline.dataset import FIRST_VALUE_ID, NULL_ID, UNSEEN_ID, Dataset
from stampede.training.config import TrainConfig
from stampede.workflows.page import Block, Chart, Facts, Note, Section, Table, color, new_figure
from stampede.workflows.recipe import RECIPES, Recipe, configure
from stampede.workflows.reporting.scored import CODE_NAMES, FIRST_RANGE, LOWER_BOUNDS
from stampede.workflows.reporting.text import UNKNOWN, share, whole
from stampede.workflows.run import Run

OF_THE_MACHINE = (
    "seed",
    "device",
    "threads",
    "compiles",
    "cuda_graph",
    "loader",
    "loader_memory",
    "checkpoint_every",
    "keep_checkpoints",
)
"""Values that a recipe does not mean to set."""

Values = dict[str, Any]


def configuration(config: TrainConfig) -> Section:
    """Return the section on the values of a run, with those that its nearest recipe would not give marked."""
    name, recipe = nearest_recipe(config)
    mine = config.model_dump(mode="json")
    differing = [key for key in mine if key not in OF_THE_MACHINE and mine[key] != recipe.get(key)]
    rows = [(key, _written(value), _written(recipe.get(key))) for key, value in mine.items()]
    header = ["value", "this run", f"recipe {name}"]
    at = f"recipe {name} at batch size {config.batch_size:,} by the rule {config.rule}"
    blocks: list[Block] = []
    if differing:
        blocks.append(
            Table(
                header,
                [row for row in rows if row[0] in differing],
                title="What differs from the recipe",
                caption=f"Beside the values that the {at} would give; it is the recipe that is nearest to "
                "this run.",
            )
        )
    else:
        blocks.append(Note(f"All values are those of the {at}."))
    marked = [index for index, row in enumerate(rows) if row[0] in differing]
    blocks.append(Table(header, rows, title="All values", folded=True, marked=marked))
    return Section("Configuration", "", blocks)


def nearest_recipe(config: TrainConfig) -> tuple[str, Values]:
    """Return the recipe that gives the most values of a run at its batch size and rule, and what it gives."""
    mine = config.model_dump(mode="json")
    found: dict[str, Values] = {}
    for name in RECIPES:
        given = {"batch_size": config.batch_size, "rule": config.rule}
        try:
            theirs, _ = configure(Recipe.named(name).train, given)
        except ConfigError:
            continue
        found[name] = theirs.model_dump(mode="json")
    name = min(found, key=lambda name: sum(found[name].get(key) != value for key, value in mine.items()))
    return name, found[name]


def data(run: Run, dataset: Dataset | None) -> Section:
    """Return the section on the dataset: its splits where it is there, its fields in any case."""
    encoder = run.encoder
    encoding = encoder.encoding
    facts: list[tuple[str, str] | tuple[str, str, str]] = [
        ("Log", encoder.schema.name),
        ("Fields", whole(len(encoder.vocabularies))),
        ("Ids of all fields", whole(sum(v.size for v in encoder.vocabularies.values()))),
        ("Dense features", whole(len(encoder.dense)), f"--dense {encoding.dense_mode}"),
    ]
    if dataset is not None:
        manifest = dataset.manifest
        rule = manifest.split
        of_rule = f"seed {rule.seed}" if rule.rule == "random" else ""
        facts += [
            ("Split rule", rule.rule, of_rule or (f"by {rule.time_unit}" if rule.rule == "time" else "")),
            ("Fitted on", manifest.fit_on, f"values with {manifest.min_count} or more rows"),
        ]
        facts += [
            (f"Rows of {name}", whole(info.rows), f"click rate {share(info.click_rate)}" if info.rows else "")
            for name, info in manifest.splits.items()
        ]
    blocks: list[Block] = [Facts(facts), _fields(run), _frequencies(run)]
    return Section("Dataset", f"The dataset lay at {run.origin.path} when the run was made.", blocks)


def _frequencies(run: Run) -> Chart:
    ids = np.zeros(len(LOWER_BOUNDS), np.int64)
    values = np.zeros(len(LOWER_BOUNDS), np.int64)
    for vocabulary in run.encoder.vocabularies.values():
        counts = vocabulary.counts[FIRST_VALUE_ID:]
        counts = counts[counts > 0]
        index = np.searchsorted(np.array(LOWER_BOUNDS), counts, side="right") - 1
        ids += np.bincount(index, minlength=len(ids))
        np.add.at(values, index, counts)
    figure = new_figure(x="training count of the id", y="share", x_type="category", bargap=0.3)
    for number, (name, numbers) in enumerate((("of the ids", ids), ("of the values in rows", values))):
        figure.add_bar(
            x=CODE_NAMES[FIRST_RANGE:],
            y=numbers / max(int(numbers.sum()), 1),
            name=name,
            marker_color=color(number),
            customdata=numbers,
            hovertemplate=f"ids with %{{x}} rows: %{{y:.2%}} {name} (%{{customdata:,}})<extra></extra>",
        )
    figure.update_yaxes(tickformat=".2~%")
    return Chart(
        "Frequent and rare ids",
        figure,
        "Ids with a value of their own, of all fields, by how often they occur in the training split. "
        "Where most ids are rare but most values in rows are of frequent ones, the tail is long: the case "
        "that CowClip is for.",
    )


def _fields(run: Run) -> Table:
    rows: list[list[str]] = []
    for name, vocabulary in run.encoder.vocabularies.items():
        counts = vocabulary.counts
        total = int(counts.sum())
        rows.append(
            [
                name,
                f"{vocabulary.size:,}",
                share(int(counts[NULL_ID]) / total if total else None),
                share(int(counts[UNSEEN_ID]) / total if total else None),
                whole(int(counts.max(initial=0))),
            ]
        )
    return Table(
        ["field", "ids", "empty", "rare", "most frequent"],
        rows,
        title="Fields",
        wide=False,
        caption="Ids in the vocabulary; shares of the rows of the training split that are empty or have a "
        "value too rare for an id of its own; rows of the most frequent id.",
    )


def _written(value: Any) -> str:
    if value is None:
        return UNKNOWN
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) and value >= 10_000 else str(value)
