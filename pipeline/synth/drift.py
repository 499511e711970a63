"""How a world changes from day to day: ``stampede synth criteo --days N --drift X``.

The age of a day is ``drift * (day - 1)``: day 1 is the preset's own world whatever the drift, and drift 2
makes of three days what drift 1 makes of five. Everything follows from the preset, the age and the number of
a value, so each day can be written alone; the seed draws the rows only. With age

- values come and go: of the fields with many values, each place in the order of frequency gets a new value
  every 1 / :data:`TURNOVER` days of age, at a moment of its own, with effects and factors of its own. The few
  most frequent ones stay;
- popularity drifts: each value of an id field is drawn less often for some days and recovers, at a pace of
  its own; where rows are taken from it, others are drawn in their place;
- effects move: those of half of the values turn away from what they were, ``cos(a) * e + sin(a) * e'``, by an
  angle of :data:`TURN` a day. Effects of numbers stay, and logits are scaled to the spread that they have on
  day 1, so that there is as much to learn on every day;
- the click rate wobbles a little from day to day.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stampede import ConfigError
from stampede.pipeline.synth.draw import key_of, mix64
from stampede.pipeline.synth.profile import Field

TURNOVER = 0.1
STABLE_RANKS = 8
MANY_VALUES = 1000
TURN = np.pi / 10
WANE = 0.3  # of the rows of a value that are drawn elsewhere, where it is least popular
FASTEST_CYCLE = 1 / 16  # cycles of popularity a day of age
WOBBLE = 0.06  # deviation of the click rate's logit, from drift 1 on
MOST_DAYS = 10_000

_GOLDEN = np.uint64(0x9E3779B1)
_MASK = np.uint64(0xFFFFFFFF)
_UNIT = 2.0**-53


@dataclass(frozen=True)
class Day:
    """A day of a log: its number, from 1, and how fast the world drifts (0: not at all)."""

    number: int = 1
    drift: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.number <= MOST_DAYS:
            raise ConfigError(f"day {self.number}: days are numbered from 1 to {MOST_DAYS}")
        if not 0.0 <= self.drift <= 100.0:
            raise ConfigError(f"--drift {self.drift}: it must be between 0, no drift, and 100")

    @property
    def age(self) -> float:
        """How far the world has drifted since day 1."""
        return self.drift * (self.number - 1)


def generations(world: str, field: Field, ranks: NDArray[np.uint64], day: Day) -> NDArray[np.uint64]:
    """Return how many values held the place of each rank before the one of this day. [n] -> [n]."""
    if field.is_integer or field.universe < MANY_VALUES:
        return np.zeros_like(ranks)
    phase = _uniform(ranks, key_of(world, field.name, "turnover"))
    passed = np.floor(phase + TURNOVER * day.age).astype(np.uint64)
    return np.where(ranks < np.uint64(STABLE_RANKS), np.uint64(0), passed)


def value_numbers(ranks: NDArray[np.uint64], generation: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the numbers of values: below 2^32, the rank itself for the first generation. [n] -> [n]."""
    return (ranks + generation * _GOLDEN) & _MASK


def turn(
    normal: NDArray[np.float64], other: NDArray[np.float64], bits: NDArray[np.uint64], day: Day
) -> NDArray[np.float64]:
    """Turn half of some effects towards others by the angle of the day; ``bits`` choose the half. [n]."""
    angle = day.age * TURN * (bits & np.uint64(1))
    return np.asarray(np.cos(angle) * normal + np.sin(angle) * other)


def drawn_elsewhere(
    world: str, field: Field, values: NDArray[np.uint64], bits: NDArray[np.uint64], day: Day
) -> NDArray[np.bool_]:
    """Return which rows do not get the value that was drawn, since it is less popular on this day. [n].

    Parameters
    ----------
    bits:
        64 random bits of each row.
    """
    cycles = FASTEST_CYCLE * _uniform(values, key_of(world, field.name, "popularity")) * day.age
    share = np.round(WANE * np.sin(np.pi * cycles) ** 2 * 65536).astype(np.uint64)
    return (bits >> np.uint64(48)) < share


def click_rate_of(world: str, click_rate: float, day: Day) -> float:
    """Return the click rate of a day, given that of the world."""
    draws = mix64(np.arange(4, dtype=np.uint64), key_of(world, "click rate", day.number))
    normal = float((draws >> np.uint64(11)).astype(np.float64).sum() * _UNIT - 2.0) * float(np.sqrt(3.0))
    odds = click_rate / (1.0 - click_rate) * float(np.exp(WOBBLE * min(day.drift, 1.0) * normal))
    return odds / (1.0 + odds)


def intercept_shift(logits: NDArray[np.float64], click_rate: float) -> float:
    """Return what is to be added to logits for their mean probability to be a click rate. [n]."""
    low, high = -10.0, 10.0
    for _ in range(50):
        middle = (low + high) / 2
        too_low = float(np.mean(1.0 / (1.0 + np.exp(-logits - middle)))) < click_rate
        low, high = (middle, high) if too_low else (low, middle)
    return low


def _uniform(numbers: NDArray[np.uint64], key: np.uint64) -> NDArray[np.float64]:
    return np.asarray((mix64(numbers, key) >> np.uint64(11)) * _UNIT, dtype=np.float64)
