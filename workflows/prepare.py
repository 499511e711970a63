"""``stampede prepare``: a recipe's and a user's options -> a dataset."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from stampede import ConfigError
from stampede.pipeline import Dataset, DenseMode, PrepareOptions, Schema, SplitRule, prepare
from stampede.pipeline.engine import EngineName
from stampede.pipeline.memory import parse_bytes
from stampede.pipeline.progress import Progress
from stampede.workflows.recipe import PrepareRecipe, Recipe


@dataclass(frozen=True)
class Prepared:
    """A new dataset and the seconds it took."""

    dataset: Dataset
    seconds: float


def run_prepare(
    preset_or_schema: str,
    inputs: list[str],
    *,
    out: Path,
    recipe: str | None,
    given: dict[str, Any],
    force: bool,
    engine: EngineName = "polars",
    memory_limit: str | None = None,
    progress: Progress | None = None,
) -> Prepared:
    """Prepare a dataset.

    Parameters
    ----------
    preset_or_schema:
        Name of a preset, or a TOML schema file.
    recipe:
        Whose [prepare] part gives the values that are not in ``given``; None for the defaults.
    given:
        Options that the user gave: names of :class:`PrepareOptions` and :class:`SplitRule`, ``split`` and
        ``dense`` for the rule and the mode.
    engine:
        What computes the dataset.
    memory_limit:
        Memory that it may take, such as 4GB; None for half of what there is.
    """
    started = time.perf_counter()
    schema = Schema.named(preset_or_schema)
    values = (Recipe.named(recipe).prepare if recipe else PrepareRecipe()).model_dump() | given
    try:
        split = SplitRule(
            rule=values.pop("split"),
            valid_fraction=values.pop("valid_fraction"),
            test_fraction=values.pop("test_fraction"),
            **{name: values.pop(name) for name in ("seed", "time_unit") if name in values},
        )
    except ValidationError as error:
        raise ConfigError.of_options(error) from error
    options = PrepareOptions(split=split, dense_mode=DenseMode(values.pop("dense")), **values)
    memory = None if memory_limit is None else parse_bytes(memory_limit)
    dataset = prepare(
        schema,
        inputs,
        out,
        options=options,
        engine=engine,
        memory=memory,
        force=force,
        progress=progress,
    )
    return Prepared(dataset, time.perf_counter() - started)
