"""What a study asks for: models x batch sizes x (rule, clip) x seeds, and the values of each point."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, get_args

from stampede import ConfigError
from stampede.training.config import ClipName, TrainConfig
from stampede.training.models import MODELS
from stampede.training.scaling import Rule
from stampede.workflows.recipe import TrainRecipe, configure, without_options_of_others

CLIPS = get_args(ClipName)
CLIPS_WITH_A_NORM = ("global", "field", "column")

NOT_OF_THE_RESULT = frozenset({"rule", "threads", "checkpoint_every", "keep_checkpoints"})
"""Values of a run that do not decide what it learns: the rule is how the others were found."""


@dataclass(frozen=True)
class Series:
    """A line of the study's charts: what is followed over batch sizes."""

    model: str
    rule: Rule
    clip: str

    @property
    def label(self) -> str:
        """Rule and clip in words; the clip only where it is not the rule's natural one."""
        return self.rule if self.clip == natural_clip(self.rule) else f"{self.rule}, clip {self.clip}"


@dataclass(frozen=True)
class Point:
    """One point of a study: what is asked for, before coinciding ones are found."""

    series: Series
    batch_size: int
    seed: int

    @property
    def name(self) -> str:
        """The name of its run folder, where no other point has the same values."""
        series = self.series
        return f"{series.model}-{series.rule}-{series.clip}-b{self.batch_size}-s{self.seed}"


@dataclass(frozen=True)
class Grid:
    """What one command asks for.

    Attributes
    ----------
    clips:
        None pairs each rule with its natural clip; else every rule goes with each of them.
    """

    models: tuple[str, ...]
    batch_sizes: tuple[int, ...]
    rules: tuple[Rule, ...]
    clips: tuple[str, ...] | None
    seeds: tuple[int, ...]

    @classmethod
    def parse(
        cls,
        *,
        models: str,
        batch_sizes: str,
        rules: str,
        clips: str | None,
        seeds: str,
    ) -> Grid:
        """Read the lists of the command line; ``seeds`` is how many (0, 1, ...), or a list of them.

        Raises
        ------
        ConfigError
            A list is empty, or has a value without meaning.
        """
        asked_seeds = _whole_numbers(seeds, "--seeds", least=0)
        if "," not in seeds:
            if asked_seeds[0] < 1:
                raise ConfigError(f"--seeds {seeds}: it must be 1 or more, or a list such as 0,5,7")
            asked_seeds = tuple(range(asked_seeds[0]))
        return cls(
            models=_names(models, "--models", known=list(MODELS)),
            batch_sizes=tuple(sorted(_whole_numbers(batch_sizes, "--batch-sizes", least=1))),
            rules=tuple(Rule(rule) for rule in _names(rules, "--rules", known=list(Rule))),
            clips=None if clips is None else _names(clips, "--clips", known=list(CLIPS)),
            seeds=asked_seeds,
        )

    def series(self) -> list[Series]:
        """Return the lines of the charts, by model."""
        pairs = [
            (rule, clip)
            for rule in self.rules
            for clip in ((natural_clip(rule),) if self.clips is None else self.clips)
        ]
        return [Series(model, rule, clip) for model, (rule, clip) in product(self.models, pairs)]

    def points(self) -> list[Point]:
        """Return all points, seed by seed, so that a study that is stopped early has some of everything."""
        return [
            Point(series, batch_size, seed)
            for seed, series, batch_size in product(self.seeds, self.series(), self.batch_sizes)
        ]


def natural_clip(rule: Rule) -> str:
    """Return the clip that a rule is meant to go with."""
    return "cowclip" if rule == Rule.COWCLIP else "none"


def values_of(point: Point, fixed: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a point gives to ``train``: its own values, and those held fixed that are of it."""
    model, clip = point.series.model, point.series.clip
    given = without_options_of_others(fixed, model=model)
    if clip not in CLIPS_WITH_A_NORM:
        given.pop("clip_norm", None)
    return given | {
        "model": model,
        "batch_size": point.batch_size,
        "rule": str(point.series.rule),
        "clip": clip,
        "seed": point.seed,
    }


def configure_points(
    points: Iterable[Point], recipe: TrainRecipe, fixed: Mapping[str, Any]
) -> dict[Point, TrainConfig]:
    """Return the values of each point's run.

    Raises
    ------
    ConfigError
        Values of a point contradict each other, or a value held fixed is of none of the models.
    """
    configs = {point: configure(recipe, values_of(point, fixed))[0] for point in points}
    models = sorted({point.series.model for point in configs})
    for name in fixed:
        if all(name not in without_options_of_others(fixed, model=model) for model in models):
            raise ConfigError(f"--{name.replace('_', '-')} is of no model of this study: {', '.join(models)}")
    clips = {point.series.clip for point in configs}
    if "clip_norm" in fixed and not clips & set(CLIPS_WITH_A_NORM):
        raise ConfigError(f"--clip-norm is of the clips {', '.join(CLIPS_WITH_A_NORM)}: name one in --clips")
    return configs


def identity(config: TrainConfig) -> str:
    """Return a text that two runs have in common when they learn the same.

    Defaults are left out, so that a study goes on when a later version has more options.
    """
    return config.model_dump_json(exclude=set(NOT_OF_THE_RESULT), exclude_defaults=True)


def _names(text: str, flag: str, *, known: list[str]) -> tuple[str, ...]:
    names = _parts(text, flag)
    for name in names:
        if name not in known:
            raise ConfigError(f"{flag} {text}: {name!r} is none of {', '.join(known)}")
    return names


def _whole_numbers(text: str, flag: str, *, least: int) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in _parts(text, flag))
    except ValueError:
        raise ConfigError(f"{flag} {text}: not a list of whole numbers such as 1,2,4") from None
    if min(numbers) < least:
        raise ConfigError(f"{flag} {text}: each must be {least} or more")
    return numbers


def _parts(text: str, flag: str) -> tuple[str, ...]:
    parts = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not parts:
        raise ConfigError(f"{flag} {text!r}: the list is empty")
    return parts
