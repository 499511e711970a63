"""The planted signal: what a row's values add to the logit of its click.

    logit = intercept + sum_f effect_f(x_f) + sum_(f, g) strength_fg * <v_f(x_f), v_g(x_g)> / sqrt(4)

Effects and factors of a value are hashes of its rank, so a field of millions of values needs a table of a
few thousand entries: the 4,096 most frequent values have an entry each, the others share 4,096 more
(through their rank; as ids are scrambled ranks, no model can see who shares). Rare values have smaller
effects and no factors. The effect of an integer is a curve over the logarithm of the value, its factors are
that logarithm, and an empty field is a value too. Factors have mean zero over the field's values that are
not empty, so where fields are drawn independently interactions add next to nothing that first-order effects
could express.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stampede.pipeline.synth.draw import QuantileTable, key_of, mix64
from stampede.pipeline.synth.drift import Day, generations, turn
from stampede.pipeline.synth.profile import Field

FACTORS = 4
HEAD = 1 << 12
NULL_ID = 2 * HEAD
NULL_INTEGER = 127
_RARE = 500  # ranks from here on have effects of _RARE_SCALE
_RARE_SCALE = 0.3
_BITS_OF_ONE = 1023 << 2
_NEXT_SHARED = 1201
_GENERATION = np.uint64(1 << 32)


@dataclass(frozen=True)
class FieldSignal:
    """What each entry of a field adds: ``effect`` [entries] to the logit, ``factors`` [entries, FACTORS]."""

    effect: NDArray[np.float64]
    factors: NDArray[np.float64]


def entries_of(
    field: Field,
    numbers: NDArray[np.uint64],
    empty: NDArray[np.bool_] | None,
    generation: NDArray[np.uint64] | None = None,
) -> NDArray[np.intp]:
    """Return the entry of each drawn number in the field's tables. [n] -> [n].

    ``generation`` is how many values held its place before: a rare one shares another entry than they did.
    """
    entry: NDArray[np.int64]
    if field.is_integer:
        # Exponent and top 2 bits of the mantissa of 1 + distance: four steps an octave, without a logarithm.
        entry = ((numbers.astype(np.float64) + 1.0).view(np.int64) >> 50) - _BITS_OF_ONE
        null = NULL_INTEGER
    else:
        entry = numbers.view(np.int64)
        null = NULL_ID
        if field.universe > HEAD:
            shared = entry if generation is None else entry + generation.view(np.int64) * _NEXT_SHARED
            entry = np.where(entry < HEAD, entry, (shared & (HEAD - 1)) | HEAD)
    if empty is not None:
        entry = np.where(empty, null, entry)
    return entry


def field_signal(world: str, field: Field, table: QuantileTable, day: Day) -> FieldSignal:
    """Build the tables of one field on a day; ``world`` names the preset, whatever the seed of the rows."""
    entries = NULL_INTEGER + 1 if field.is_integer else NULL_ID + 1
    numbers = np.arange(entries, dtype=np.uint64)
    held = numbers  # by which value: of a later generation where the first has gone
    if day.age and not field.is_integer:
        held = np.where(numbers < HEAD, generations(world, field, numbers, day), 0) * _GENERATION + numbers
    normal = _normal(mix64(held, key_of(world, field.name, "effect")))
    if day.age and not field.is_integer:
        other = _normal(mix64(held, key_of(world, field.name, "later effect")))
        normal = turn(normal, other, mix64(held, key_of(world, field.name, "turns")), day)
    bits = mix64(held, key_of(world, field.name, "factors"))
    signs = np.where((bits[:, None] >> np.arange(FACTORS, dtype=np.uint64)) & np.uint64(1), 1.0, -1.0)
    share = np.bincount(entries_of(field, table.start, None), minlength=entries) / len(table.start)
    if field.is_integer:
        place = numbers.astype(np.float64)
        mean = share @ place
        z = np.clip((place - mean) / np.sqrt(share @ (place - mean) ** 2), -3.0, 3.0)
        curve = 0.9 * z + 0.3 * (z**2 - share @ z**2)
        curve[NULL_INTEGER] = normal[NULL_INTEGER]
        z[NULL_INTEGER] = 0.0
        effect = np.sign(normal[0]) * curve
        factors = z[:, None] * signs[:1]
    else:
        rare = (numbers >= _RARE) & (numbers != NULL_ID)
        effect = np.where(rare, _RARE_SCALE * normal, normal)
        effect = effect - share @ effect
        factors = signs - share[:HEAD] @ signs[:HEAD] / max(share[:HEAD].sum(), 1e-9)
        factors[HEAD:] = 0.0
    return FieldSignal(effect=field.effect * effect, factors=factors)


def interaction(strength: float, factors: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Sum the scaled products of every pair, as a factorization machine does. F x [n, FACTORS] -> [n]."""
    total = np.zeros_like(factors[0])
    squares = np.zeros_like(factors[0])
    for each in factors:
        total += each
        squares += each * each
    products = total * total
    products -= squares
    pairs: NDArray[np.float64] = (products[:, 0] + products[:, 1]) + (products[:, 2] + products[:, 3])
    pairs *= strength * 0.5 / np.sqrt(FACTORS)
    return pairs


def _normal(draws: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Sum of four uniform numbers, scaled to variance 1: close to normal, bounded by 3.5. [n] -> [n]."""
    parts = (draws[:, None] >> np.arange(0, 64, 16, dtype=np.uint64)) & np.uint64(0xFFFF)
    total: NDArray[np.float64] = parts.sum(axis=1) / 65536 - 2.0
    return total * float(np.sqrt(3.0))
