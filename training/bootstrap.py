"""How sure metrics and their differences are: paired bootstrap over rows, and DeLong's test of AUCs.

Every resample is drawn from the seed and its number alone, and is the same for all models: what is left of
the noise in a difference is that of the rows on which they differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stampede import StampedeError
from stampede.kernels.cpu.resample import draw, weighted_metrics
from stampede.training.metrics import Labels, auc, log_loss, probabilities_of

Float64 = NDArray[np.float64]

LEVEL = 0.95


@dataclass(frozen=True)
class ScoredRows:
    """Rows with a model's logits, sorted once for all resamples.

    Attributes
    ----------
    auc, logloss:
        Of all rows; the AUC is None where they are of one class.
    order:
        int32 ``[N]``: the rows by rising logit.
    ends:
        ``[N]``: whether a place in that order is the last of its logit.
    clicked, losses:
        ``[N]``: label and log loss of the row at each place of the order.
    """

    auc: float | None
    logloss: float
    order: NDArray[np.int32]
    ends: NDArray[np.bool_]
    clicked: Labels
    losses: Float64

    @classmethod
    def of(cls, labels: ArrayLike, logits: ArrayLike) -> ScoredRows:
        """Sort rows by their logits.

        Parameters
        ----------
        labels:
            ``[N]`` of 0 and 1.
        logits:
            ``[N]``, float.

        Raises
        ------
        stampede.StampedeError
            There are no rows, or as :func:`stampede.training.metrics.auc`.
        """
        values = np.asarray(logits)
        area = auc(labels, values)
        probabilities = probabilities_of(values)
        loss = log_loss(labels, probabilities)
        if loss is None:
            raise StampedeError("there are no rows to compare on")
        clicked = np.asarray(labels) == 1
        epsilon = np.finfo(np.float64).eps
        right = np.clip(np.where(clicked, probabilities, 1 - probabilities), epsilon, 1 - epsilon)
        order = np.argsort(values, kind="stable").astype(np.int32)
        ordered = values[order]
        ends = np.append(ordered[1:] != ordered[:-1], True)
        return cls(area, loss, order, ends, clicked[order], -np.log(right[order]))

    def __len__(self) -> int:
        return len(self.order)


@dataclass(frozen=True)
class Resampled:
    """Metrics of models on resamples of the rows.

    Attributes
    ----------
    auc, logloss:
        float64 ``[models, resamples]``; the AUC of a resample of one class is NaN.
    """

    auc: Float64
    logloss: Float64


def bootstrap(
    models: Sequence[ScoredRows],
    *,
    resamples: int,
    seed: int,
    threads: int = 1,
    done: Callable[[int], None] = lambda _resamples: None,
) -> Resampled:
    """Evaluate models on resamples of their rows: as many rows, drawn with replacement, the same for all.

    Parameters
    ----------
    models:
        The same rows in the same order, each with its own logits.
    threads:
        How many resamples are worked on at a time; the result does not depend on it.
    done:
        Is told of resamples as they are done.
    """
    rows = len(models[0])
    if any(len(model) != rows for model in models):
        raise ValueError("all models must have scored the same rows")
    areas = np.empty((len(models), resamples))
    losses = np.empty((len(models), resamples))

    def work(number: int) -> None:
        weights = draw(rows, seed=np.random.SeedSequence((seed, number)).generate_state(1, np.uint64)[0])
        for row, model in enumerate(models):
            areas[row, number], losses[row, number] = weighted_metrics(
                weights, model.order, model.ends, model.clicked, model.losses
            )

    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(work, range(resamples)):
            done(1)
    return Resampled(areas, losses)


@dataclass(frozen=True)
class Interval:
    """The middle 95% of the resamples."""

    low: float
    high: float

    @classmethod
    def of(cls, values: Float64) -> Interval | None:
        """Return the percentile interval of resampled values; None where none is defined."""
        defined = values[np.isfinite(values)]
        if len(defined) == 0:
            return None
        low, high = np.quantile(defined, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return cls(float(low), float(high))


def two_sided_p(differences: Float64) -> float | None:
    """Return the p-value of "no difference" from resampled differences; None where none is defined.

    Twice the share of resamples on the rarer side of 0, one counted in addition, as a resample that was seen
    (Davison & Hinkley 1997, 4.2); differences of exactly 0 are on both sides.
    """
    defined = differences[np.isfinite(differences)]
    if len(defined) == 0:
        return None
    rarer = min(int((defined <= 0).sum()), int((defined >= 0).sum()))
    return min(1.0, 2 * (rarer + 1) / (len(defined) + 1))


@dataclass(frozen=True)
class DeLong:
    """DeLong's test of two AUCs on the same rows.

    Attributes
    ----------
    standard_error:
        Of the difference.
    z, p:
        The difference in standard errors, and the two-sided p-value of "no difference".
    """

    difference: float
    standard_error: float
    z: float
    p: float
    low: float
    high: float


def delong(labels: ArrayLike, logits: ArrayLike, other: ArrayLike) -> DeLong | None:
    """Test the difference of two AUCs, ``auc(logits) - auc(other)``; None where they are undefined.

    The variance of DeLong, DeLong & Clarke-Pearson (1988), from midranks as in Sun & Xu (2014,
    doi:10.1109/LSP.2014.2337313): one sort instead of a comparison of every pair.

    Parameters
    ----------
    labels:
        ``[N]`` of 0 and 1.
    logits, other:
        ``[N]`` each, any monotone score.
    """
    clicked = np.asarray(labels) == 1
    clicks, others = int(clicked.sum()), int((~clicked).sum())
    if clicks < 2 or others < 2:
        return None
    of_clicks, of_others = np.empty((2, clicks)), np.empty((2, others))
    for row, scores in enumerate((logits, other)):
        of_clicks[row], of_others[row] = _components(clicked, np.asarray(scores))
    areas = of_clicks.mean(axis=1)
    covariance = np.cov(of_clicks) / clicks + np.cov(of_others) / others
    difference = float(areas[0] - areas[1])
    variance = float(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1])
    error = max(variance, 0.0) ** 0.5
    normal = NormalDist()
    z = (
        0.0
        if difference == 0
        else (difference / error if error > 0 else float(np.copysign(np.inf, difference)))
    )
    margin = normal.inv_cdf((1 + LEVEL) / 2) * error
    return DeLong(
        difference=difference,
        standard_error=error,
        z=z,
        p=2 * normal.cdf(-abs(z)),
        low=difference - margin,
        high=difference + margin,
    )


def _components(clicked: Labels, scores: NDArray[np.floating]) -> tuple[Float64, Float64]:
    """Return for each click the share of non-clicks below it, for each non-click that of clicks above it.

    A tie counts one half. The mean of either is the AUC.
    """
    clicks, others = int(clicked.sum()), int((~clicked).sum())
    among_all = _midranks(scores)
    of_clicks = (among_all[clicked] - _midranks(scores[clicked])) / others
    of_others = 1 - (among_all[~clicked] - _midranks(scores[~clicked])) / clicks
    return of_clicks, of_others


def _midranks(values: NDArray[np.floating]) -> Float64:
    """Return the rank of each value from 1, ties at the mean of their ranks."""
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(sizes)
    ranks: Float64 = last - (sizes - 1) / 2
    return ranks[group]
