"""Resamples of rows, and AUC and mean loss of rows that count so often: one pass over rows sorted once."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Float64 = NDArray[np.float64]


def draw(rows: int, *, seed: int | np.integer[Any]) -> NDArray[np.uint8]:
    """Draw as many rows as there are, with replacement; return how often each was drawn, uint8 ``[rows]``.

    A row is drawn with probability ``1/rows`` to within ``2^-32``, from the splitmix64 sequence of the seed.
    No count reaches 256 in practice: its chance is below ``1/256!`` for each row.
    """
    weights = np.zeros(rows, np.uint8)
    _draw_kernel()(weights, np.uint64(seed))
    return weights


def weighted_metrics(
    weights: NDArray[np.uint8],
    order: NDArray[np.int32],
    ends: NDArray[np.bool_],
    clicked: NDArray[np.bool_],
    losses: Float64,
) -> tuple[float, float]:
    """Give the AUC and the mean loss of rows that count so many times each.

    ``AUC = sum over ties of clicks * (others below + others level / 2) / (clicks * others)``, exact in
    integers up to the last division. It is NaN where the rows that count are of one class.

    Parameters
    ----------
    weights:
        ``[N]``, how many times each row counts.
    order:
        ``[N]``, the rows by rising score.
    ends:
        ``[N]``, whether a place in that order is the last of its score.
    clicked, losses:
        ``[N]``, label and loss of the row at each place of the order.
    """
    auc, loss = _metrics_kernel()(weights, order, ends, clicked, losses)
    return float(auc), float(loss)


@cache
def _draw_kernel() -> Any:
    @njit(nogil=True)
    def kernel(weights: Any, seed: Any) -> None:
        rows = np.uint64(len(weights))
        state = seed
        for _ in range(len(weights)):
            state += np.uint64(0x9E3779B97F4A7C15)
            x = state
            x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            x ^= x >> np.uint64(31)
            weights[((x >> np.uint64(32)) * rows) >> np.uint64(32)] += 1

    return kernel


@cache
def _metrics_kernel() -> Any:
    @njit(nogil=True)
    def kernel(weights: Any, order: Any, ends: Any, clicked: Any, losses: Any) -> Any:
        twice, below, clicks_here, others_here, clicks = 0, 0, 0, 0, 0
        loss = 0.0
        for place in range(len(order)):
            weight = np.int64(weights[order[place]])
            loss += weight * losses[place]
            of_clicks = weight * clicked[place]
            clicks_here += of_clicks
            others_here += weight - of_clicks
            if ends[place]:
                twice += clicks_here * (2 * below + others_here)
                below += others_here
                clicks += clicks_here
                clicks_here, others_here = 0, 0
        if clicks == 0 or below == 0:
            return np.nan, loss / (clicks + below)
        return twice / (2.0 * clicks * below), loss / (clicks + below)

    return kernel
