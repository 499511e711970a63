"""Random draws that depend on the row number alone, and the quantile tables that turn them into values.

Rows are drawn in integer arithmetic on uint64, so they are the same on every machine and in blocks of any
size.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stampede.pipeline.synth.profile import Field

BINS = 1 << 16
_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def key_of(*words: str | int) -> np.uint64:
    """Return the 64-bit key of a stream of random numbers, from its names."""
    digest = hashlib.blake2b("\0".join(map(str, words)).encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))


def mix64(numbers: NDArray[np.uint64], key: np.uint64) -> NDArray[np.uint64]:
    """splitmix64 of ``numbers`` in the stream ``key``: a bijection of 64 bits. [n] -> [n]."""
    x = numbers * _GAMMA
    x += key
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def mix32(numbers: NDArray[np.uint32], key: np.uint64) -> NDArray[np.uint32]:
    """Scramble ranks into ids: murmur3's finalizer, a bijection of 32 bits, so no two ranks share an id."""
    x = numbers ^ np.uint32(int(key) & 0xFFFFFFFF)
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x85EBCA6B)
    x ^= x >> np.uint32(13)
    x *= np.uint32(0xC2B2AE35)
    x ^= x >> np.uint32(16)
    return x


@dataclass(frozen=True)
class QuantileTable:
    """An inverse distribution function in 65,536 steps of equal probability.

    Step i holds ``width[i]`` numbers from ``start[i]`` on, all equally likely. A frequent number fills many
    steps of width 1 (shares are exact to 1/65536); the tail's steps are wide.
    """

    start: NDArray[np.uint64]  # [BINS]
    width: NDArray[np.uint64]  # [BINS]

    def look_up(self, draws: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Turn 64 random bits into a number: the top 16 choose the step, the low 32 the place in it."""
        step = draws >> np.uint64(48)
        place = draws & np.uint64(0xFFFFFFFF)
        place *= self.width[step]
        place >>= np.uint64(32)
        place += self.start[step]
        return place


def quantile_table(field: Field) -> QuantileTable:
    """Build the table of a field: of its ids' ranks (from 0) or its integers' distances from ``base``."""
    ranks = np.array([0, *(rank for rank, _ in field.points)], dtype=np.float64)
    shares = np.array([0.0, *(share for _, share in field.points)])
    edges = np.arange(1, BINS) / BINS
    # Between two points a share grows with the logarithm of the rank: locally Zipf's law.
    place = np.exp(np.interp(edges, shares, np.log(np.maximum(ranks, 1.0))))
    place[edges < shares[1]] = 0.0
    beyond = edges > shares[-1]
    if field.tail is not None:
        # Inverse of the truncated power law from the last point to the universe.
        exponent = 1.0 - field.tail
        low, high = ranks[-1] ** exponent, float(field.universe) ** exponent
        rest = (edges[beyond] - shares[-1]) / (1.0 - shares[-1])
        place[beyond] = (low + rest * (high - low)) ** (1.0 / exponent)
    bounds = np.floor(np.append(place, field.universe) + 1e-9).astype(np.uint64)
    start = np.concatenate([np.zeros(1, np.uint64), bounds[:-1]])
    start = np.minimum(start, np.uint64(field.universe - 1))
    return QuantileTable(start=start, width=np.maximum(bounds - np.minimum(bounds, start), np.uint64(1)))
