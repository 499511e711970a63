"""Recipes: named settings for preparing and training, and how they follow the batch size."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from stampede import ConfigError
from stampede.training.config import TrainConfig
from stampede.training.scaling import HyperParameters, Rule, scale

RECIPES = ("criteo", "avazu", "small")

SCALED = ("learning_rate", "embedding_learning_rate", "l2")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PrepareRecipe(_Part):
    """The [prepare] part: values of the options of ``stampede prepare``."""

    split: Literal["random", "sequential", "time"] = "random"
    valid_fraction: float = 0.1
    test_fraction: float = 0.1
    min_count: int = 2
    max_size: int | None = None
    hash_buckets: int = 0
    dense: Literal["log", "minmax", "standard", "none", "log-bucket"] = "log"


class BatchException(_Part):
    """Values that replace the scaled ones for some batch sizes, where what was published leaves the rule."""

    min_batch_size: int = 1
    max_batch_size: int
    learning_rate: float | None = None
    embedding_learning_rate: float | None = None
    l2: float | None = None
    zeta: float | None = None

    def values(self) -> dict[str, float]:
        """Return the values it sets."""
        return self.model_dump(exclude={"min_batch_size", "max_batch_size"}, exclude_none=True)


class TrainRecipe(TrainConfig):
    """The [train] part: the values of a run at the base batch, which is its ``batch_size``."""

    exceptions: tuple[BatchException, ...] = ()


class Recipe(_Part):
    """A recipe file: a [prepare] and a [train] part."""

    prepare: PrepareRecipe = PrepareRecipe()
    train: TrainRecipe = TrainRecipe()

    @classmethod
    def named(cls, name_or_path: str) -> Recipe:
        """Return the recipe of that name, else the one in that TOML file.

        Raises
        ------
        ConfigError
            There is none, or it has a key or value without meaning.
        """
        if name_or_path in RECIPES:
            text = (
                resources.files("stampede.workflows").joinpath("recipes", f"{name_or_path}.toml").read_text()
            )
            return cls(**tomllib.loads(text))
        path = Path(name_or_path)
        try:
            return cls(**tomllib.loads(path.read_text("utf-8")))
        except OSError as error:
            raise ConfigError(
                f"--recipe {name_or_path}: neither one of {', '.join(RECIPES)} nor a readable TOML file"
            ) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: not a TOML file: {error}") from error
        except ValidationError as error:
            raise ConfigError.of_validation(error, str(path)) from error


@dataclass(frozen=True)
class Scaled:
    """The hyper-parameters of a batch size.

    Attributes
    ----------
    exceptions:
        Where the recipe makes an exception from the rule: name -> (the rule's value, the recipe's).
    """

    batch_size: int
    rule: Rule
    learning_rate: float
    embedding_learning_rate: float
    l2: float
    zeta: float
    warmup_epochs: float
    exceptions: dict[str, tuple[float, float]]


def scale_recipe(recipe: TrainRecipe, *, batch_size: int | None = None, rule: Rule | None = None) -> Scaled:
    """Scale a recipe from its base batch to another by a rule.

    Its exceptions are part of what was published with the rule ``cowclip``, and apply under that rule alone.
    """
    batch_size = recipe.batch_size if batch_size is None else batch_size
    rule = recipe.rule if rule is None else rule
    if batch_size < 1:
        raise ConfigError(f"--batch-size {batch_size}: it must be 1 or more")
    base = HyperParameters(recipe.learning_rate, recipe.embedding_learning_rate, recipe.l2)
    scaled = scale(base, batch_size / recipe.batch_size, rule=rule)
    values = {**{name: getattr(scaled, name) for name in SCALED}, "zeta": recipe.zeta}
    exceptions: dict[str, tuple[float, float]] = {}
    for exception in recipe.exceptions if rule == Rule.COWCLIP else ():
        if exception.min_batch_size <= batch_size <= exception.max_batch_size:
            replaced = exception.values()
            exceptions |= {name: (values[name], value) for name, value in replaced.items()}
            values |= replaced
    return Scaled(
        batch_size=batch_size,
        rule=rule,
        warmup_epochs=recipe.warmup_epochs,
        exceptions=exceptions,
        **values,
    )


def describe_exceptions(exceptions: dict[str, tuple[float, float]], *, batch_size: int) -> str:
    """Put the exceptions of a :class:`Scaled` into a line."""
    changes = ", ".join(
        f"{name} to {used:g} (the rule gives {ruled:g})" for name, (ruled, used) in exceptions.items()
    )
    return f"at batch size {batch_size:,} the recipe makes an exception: it sets {changes}"


_OPTIONS_OF: dict[str, tuple[str, ...]] = {
    "cross_layers": ("dcn", "dcn-v2", "dcn-v2-mix"),
    "l2_cross": ("dcn", "dcn-v2", "dcn-v2-mix"),
    "low_rank": ("dcn-v2-mix",),
    "experts": ("dcn-v2-mix",),
    "bottom_hidden": ("dlrm",),
    "cin_layers": ("xdeepfm",),
    "attention_layers": ("autoint",),
    "attention_heads": ("autoint",),
    "attention_dim": ("autoint",),
}
"""Option -> the models that it is of."""


def _check_options(given: dict[str, Any], *, model: str) -> None:
    """Raise for an option that would do nothing."""
    for name, models in _OPTIONS_OF.items():
        if name in given and model not in models:
            flag = "--" + name.replace("_", "-")
            raise ConfigError(f"{flag} is of the model {' and '.join(models)}, not of {model}")
    for name in ("rho", "bound"):
        if name in given and given.get("optimizer") != "helen":
            raise ConfigError(f"--{name} is of --optimizer helen")


def without_options_of_others(given: Mapping[str, Any], *, model: str) -> dict[str, Any]:
    """Return what was given without the options that are of other models."""
    return {name: value for name, value in given.items() if model in _OPTIONS_OF.get(name, (model,))}


def configure(
    recipe: TrainRecipe, given: dict[str, Any]
) -> tuple[TrainConfig, dict[str, tuple[float, float]]]:
    """Combine a recipe with the values that a user gave, each of which is taken as it is.

    Parameters
    ----------
    given:
        Values of :class:`stampede.training.config.TrainConfig`, without those that were not given.

    Returns
    -------
    TrainConfig, dict
        The values of the run, and those exceptions of :class:`Scaled` that are in force.

    Raises
    ------
    ConfigError
        Values without meaning, or that contradict each other.
    """
    _check_options(given, model=given.get("model", recipe.model))
    rule = Rule(given["rule"]) if "rule" in given else None
    scaled = scale_recipe(recipe, batch_size=given.get("batch_size"), rule=rule)
    values = recipe.model_dump(exclude={"exceptions"})
    values |= {name: getattr(scaled, name) for name in (*SCALED, "zeta", "batch_size", "rule")}
    if {"optimizer", "clip"} & set(given):
        del values["optimizer"], values["clip"]  # what is given decides both
    exceptions = {name: change for name, change in scaled.exceptions.items() if name not in given}
    return TrainConfig.check(**values | given), exceptions
