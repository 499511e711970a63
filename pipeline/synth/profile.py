"""The measured shape of a log, field by field, and the strengths of the signal planted in it."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from stampede import ConfigError

PresetName = Literal["criteo", "avazu"]
PRESETS: tuple[PresetName, ...] = ("criteo", "avazu")


@dataclass(frozen=True)
class Field:
    """One column of the log; the words are explained at the head of criteo.toml."""

    name: str
    effect: float
    points: tuple[tuple[int, float], ...]
    universe: int
    tail: float | None = None
    size: int | None = None
    null: float = 0.0
    base: int | None = None
    draw: str = ""
    reverse: bool = False
    null_with: str = ""
    values: tuple[str, ...] = ()
    range: tuple[int, int] | None = None

    @property
    def is_integer(self) -> bool:
        """Whether the drawn number itself is the value, not the rank of an id."""
        return self.base is not None


@dataclass(frozen=True)
class Interaction:
    """A set of fields of which every pair interacts."""

    fields: tuple[str, ...]
    strength: float


@dataclass(frozen=True)
class Profile:
    """All fields of a log in file order, and what the click depends on."""

    name: PresetName
    click_rate: float
    intercept: float
    fields: tuple[Field, ...]
    interactions: tuple[Interaction, ...]


@cache
def load_profile(preset: PresetName) -> Profile:
    """Read the profile that ships with the package."""
    if preset not in PRESETS:
        raise ConfigError(f"no preset {preset!r}: synth knows {', '.join(PRESETS)}")
    table = tomllib.loads((files("stampede.pipeline.synth") / f"{preset}.toml").read_text(encoding="utf-8"))
    return Profile(
        name=preset,
        click_rate=table["click_rate"],
        intercept=table["intercept"],
        fields=tuple(_field(name, entry) for name, entry in table["fields"].items()),
        interactions=tuple(
            Interaction(tuple(entry["fields"]), entry["strength"]) for entry in table["interactions"]
        ),
    )


def _field(name: str, entry: dict[str, Any]) -> Field:
    draw: str = entry.get("draw", name)
    points = tuple((int(rank), float(share)) for rank, share in entry["points"])
    bounds = entry.get("range")
    return Field(
        name=name,
        effect=entry["effect"],
        points=points,
        universe=entry.get("universe", points[-1][0]),
        tail=entry.get("tail"),
        size=entry.get("size"),
        null=entry.get("null", 0.0),
        base=entry.get("base"),
        draw=draw.removeprefix("-"),
        reverse=draw.startswith("-"),
        null_with=entry.get("null_with", draw.removeprefix("-")),
        values=tuple(entry.get("values", ())),
        range=None if bounds is None else (bounds[0], bounds[1]),
    )
