"""``stampede prepare``: a recipe's and a user's options -> a dataset."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from stampede import ConfigError
from stampede.pipeline import Dataset, DenseMode, PrepareOptions, Schema, SplitRule, append_split, prepare
from stampede.pipeline.engine import EngineName, GpuOptions
from stampede.pipeline.estimate import Estimate, estimate
from stampede.pipeline.grow import GrowOptions
from stampede.pipeline.memory import parse_bytes
from stampede.pipeline.plan import check_dataset_free
from stampede.pipeline.progress import Progress
from stampede.workflows.recipe import PrepareRecipe, Recipe


@dataclass(frozen=True)
class Prepared:
    """A new dataset and the seconds it took."""

    dataset: Dataset
    seconds: float


@dataclass(frozen=True)
class PrepareRequest:
    """What ``prepare`` is asked for.

    Attributes
    ----------
    preset_or_schema:
        Name of a preset, or a TOML schema file.
    recipe:
        Whose [prepare] part gives the values that are not in ``given``; None for the defaults.
    given:
        Options that the user gave: names of :class:`PrepareOptions` and :class:`SplitRule`, ``split`` and
        ``dense`` for the rule and the mode.
    memory_limit:
        Memory that it may take, such as 4GB; None for half of what there is.
    """

    preset_or_schema: str
    inputs: list[str]
    out: Path
    recipe: str | None
    given: dict[str, Any]
    memory_limit: str | None = None

    @property
    def schema(self) -> Schema:
        """What the log holds."""
        return Schema.named(self.preset_or_schema)

    @property
    def memory(self) -> int | None:
        """Bytes of memory that it may take."""
        return None if self.memory_limit is None else parse_bytes(self.memory_limit)

    def options(self) -> PrepareOptions:
        """Return the recipe's values and the given ones."""
        values = (Recipe.named(self.recipe).prepare if self.recipe else PrepareRecipe()).model_dump()
        values |= self.given
        if "folds" in values and not values.get("target_encode"):
            raise ConfigError("--folds is of use with --target-encode only")
        try:
            split = SplitRule(
                rule=values.pop("split"),
                valid_fraction=values.pop("valid_fraction"),
                test_fraction=values.pop("test_fraction"),
                **{name: values.pop(name) for name in ("seed", "time_unit") if name in values},
            )
        except ValidationError as error:
            raise ConfigError.of_options(error) from error
        return PrepareOptions(split=split, dense_mode=DenseMode(values.pop("dense")), **values)


def run_prepare(
    request: PrepareRequest,
    *,
    force: bool,
    engine: EngineName = "polars",
    gpu: GpuOptions | None = None,
    progress: Progress | None = None,
) -> Prepared:
    """Prepare a dataset.

    Parameters
    ----------
    engine:
        What computes the dataset.
    gpu:
        Options of the engine ``polars-gpu``.
    """
    started = time.perf_counter()
    dataset = prepare(
        request.schema,
        request.inputs,
        request.out,
        options=request.options(),
        engine=engine,
        gpu=gpu,
        memory=request.memory,
        force=force,
        progress=progress,
    )
    return Prepared(dataset, time.perf_counter() - started)


def run_append(
    request: PrepareRequest, split: str, *, grow: bool = False, progress: Progress | None = None
) -> Prepared:
    """Add a split to a dataset; nothing but the files and what is done with bad rows is up to the user.

    Parameters
    ----------
    grow:
        Whether the vocabularies grow by the values of the files; how often a new value must occur is up to
        the user then.
    """
    started = time.perf_counter()
    free = {"bad_rows", "min_count"} if grow else {"bad_rows"}
    if request.recipe is not None or request.given.keys() - free:
        also = ", --bad-rows and --min-count" if grow else " and --bad-rows"
        raise ConfigError(
            f"--append {split}: a split is encoded as its dataset was: leave out --recipe and all "
            f"but --out{also}"
        )
    given = dict(request.given)
    growing = GrowOptions(min_count=given.pop("min_count", None)) if grow else None
    dataset = append_split(
        request.schema, request.inputs, request.out, split, **given, grow=growing, progress=progress
    )
    return Prepared(dataset, time.perf_counter() - started)


def run_estimate(request: PrepareRequest, *, force: bool) -> Estimate:
    """Estimate what preparing will take; where it would be refused, so is this."""
    check_dataset_free(request.out, force=force)
    return estimate(
        request.schema, request.inputs, request.out, options=request.options(), memory=request.memory
    )
