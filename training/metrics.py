"""Exact evaluation: AUC, log loss and calibration, in float64 over all rows.

What is undefined (the AUC of one class, anything of no rows) is None, not a number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from stampede import DivergedError, StampedeError

Float64 = NDArray[np.float64]
Labels = NDArray[np.bool_]


def auc(labels: ArrayLike, scores: ArrayLike) -> float | None:
    """Area under the ROC curve: the chance that a click scores above a non-click, a tie counting one half.

    ``(sum over clicks of [non-clicks below + half of those level]) / (clicks * non-clicks)``, from one sort
    and exact in integers up to the last division.

    Parameters
    ----------
    labels:
        ``[N]`` of 0 and 1.
    scores:
        ``[N]``, any monotone score.

    Returns
    -------
    float | None
        None where the labels are of one class only.

    Raises
    ------
    stampede.StampedeError
        A score that is not finite, a label other than 0 and 1, or unequal lengths.
    """
    clicked, values = _check(labels, scores)
    clicks = int(clicked.sum())
    others = len(clicked) - clicks
    if clicks == 0 or others == 0:
        return None
    order = np.argsort(values)
    values, clicked = values[order], clicked[order]
    starts = np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1])))  # first row of each tie
    clicks_of = np.add.reduceat(clicked, starts, dtype=np.int64)
    others_of = np.diff(np.append(starts, len(values))) - clicks_of
    others_below = np.cumsum(others_of) - others_of
    twice = int(np.sum(clicks_of * (2 * others_below + others_of)))  # below 2^63 up to 3e9 rows
    return twice / (2 * clicks * others)


def log_loss(labels: ArrayLike, scores: ArrayLike) -> float | None:
    """Mean of ``-(y log p + (1 - y) log(1 - p))``, p kept in [e, 1 - e], e = 2.2e-16, as in scikit-learn.

    Parameters
    ----------
    labels:
        ``[N]`` of 0 and 1.
    scores:
        ``[N]``, probabilities.

    Returns
    -------
    float | None
        None for no rows.

    Raises
    ------
    stampede.StampedeError
        As :func:`auc`, or a score outside [0, 1].
    """
    clicked, probabilities = _check(labels, scores)
    if len(clicked) == 0:
        return None
    _check_probabilities(probabilities)
    right = np.where(clicked, probabilities, 1 - probabilities)  # probability given to what happened
    epsilon = np.finfo(np.float64).eps
    return float(-np.log(np.clip(right, epsilon, 1 - epsilon)).mean())


@dataclass(frozen=True)
class ReliabilityBin:
    """The rows whose score lies in [lower, upper); 1 belongs to the last bin."""

    lower: float
    upper: float
    rows: int
    mean_score: float | None
    click_rate: float | None


@dataclass(frozen=True)
class Calibration:
    """How far scores can be read as click rates; None for no rows."""

    mean_score: float | None
    click_rate: float | None
    bins: tuple[ReliabilityBin, ...]


def calibration(labels: ArrayLike, scores: ArrayLike, *, bins: int = 10) -> Calibration:
    """Compare scores with click rates, over all rows and in bins of equal width.

    Parameters
    ----------
    labels:
        ``[N]`` of 0 and 1.
    scores:
        ``[N]``, probabilities.
    bins:
        How many; an empty bin is listed, with its means None.

    Raises
    ------
    stampede.StampedeError
        As :func:`log_loss`.
    """
    clicked, probabilities = _check(labels, scores)
    _check_probabilities(probabilities)
    index = np.minimum((probabilities * bins).astype(np.int64), bins - 1)
    rows = np.bincount(index, minlength=bins)
    score_sums = np.bincount(index, weights=probabilities, minlength=bins)
    click_sums = np.bincount(index, weights=clicked, minlength=bins)
    return Calibration(
        mean_score=_mean(float(probabilities.sum()), len(clicked)),
        click_rate=_mean(float(clicked.sum()), len(clicked)),
        bins=tuple(
            ReliabilityBin(
                lower=i / bins,
                upper=(i + 1) / bins,
                rows=int(rows[i]),
                mean_score=_mean(float(score_sums[i]), int(rows[i])),
                click_rate=_mean(float(click_sums[i]), int(rows[i])),
            )
            for i in range(bins)
        ),
    )


def probabilities_of(logits: ArrayLike) -> Float64:
    """Turn logits into probabilities in float64.

    In numpy, not torch: torch's vectorised and scalar sigmoid differ in the last bit, so the same logit
    could give two probabilities by its place in the array, and a tie would be lost.
    """
    values = np.asarray(logits, dtype=np.float64)
    small = np.exp(-np.abs(values))
    return np.where(values >= 0, 1.0, small) / (1.0 + small)


@dataclass(frozen=True)
class Metrics:
    """What one evaluation gives; what is undefined is None."""

    auc: float | None
    logloss: float | None
    rows: int
    click_rate: float | None
    mean_score: float | None
    calibration: Calibration


class Evaluation:
    """Gather the logits and labels of batches, and evaluate them as one.

    Logits are kept in float32 (5 bytes a row with the label) on the device they come from, so gathering
    does not wait for it.

    >>> evaluation = Evaluation()
    >>> evaluation.update(torch.tensor([2.0, -1.0]), torch.tensor([1, 0]))
    >>> evaluation.result().auc
    1.0
    """

    def __init__(self) -> None:
        self._logits: list[Tensor] = []
        self._labels: list[Tensor] = []

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Take a batch: logits ``[B]`` of any floating dtype, labels ``[B]`` of 0 and 1."""
        if logits.dim() != 1 or logits.shape != labels.shape:
            raise ValueError(
                f"logits {list(logits.shape)} and labels {list(labels.shape)} must both be [batch]"
            )
        self._logits.append(
            logits.detach().to(torch.float32, copy=True)
        )  # a captured graph reuses its output
        self._labels.append(labels.detach().to(torch.int8, copy=True))

    def result(self) -> Metrics:
        """Evaluate all rows taken so far.

        Raises
        ------
        stampede.StampedeError
            A logit that is not finite.
        """
        empty = torch.zeros(0)
        logits: NDArray[Any] = torch.cat(self._logits or [empty]).cpu().numpy()
        labels: NDArray[Any] = torch.cat(self._labels or [empty.to(torch.int8)]).cpu().numpy()
        _check(labels, logits)  # before the sigmoid, which would turn an infinite logit into a probability
        scores = probabilities_of(logits)
        table = calibration(labels, scores)
        return Metrics(
            auc=auc(labels, logits),  # a probability near 1 rounds, and would tie scores that differ
            logloss=log_loss(labels, scores),
            rows=len(labels),
            click_rate=table.click_rate,
            mean_score=table.mean_score,
            calibration=table,
        )


def _mean(total: float, rows: int) -> float | None:
    return total / rows if rows else None


def _check(labels: ArrayLike, scores: ArrayLike) -> tuple[Labels, Float64]:
    values = np.asarray(scores, dtype=np.float64)
    raw = np.asarray(labels)
    if values.ndim != 1 or raw.shape != values.shape:
        raise StampedeError(
            f"labels {list(raw.shape)} and scores {list(values.shape)} must be two equal columns"
        )
    clicked: Labels = raw == 1
    if not (clicked | (raw == 0)).all():
        raise StampedeError("labels must be 0 or 1")
    finite = np.isfinite(values)
    if not finite.all():
        row = int(np.argmin(finite))
        raise DivergedError(
            f"{len(values) - int(finite.sum())} of {len(values)} scores are not finite (the first is "
            f"{values[row]}, in row {row}): training has diverged, lower the learning rates"
        )
    return clicked, values


def _check_probabilities(values: Float64) -> None:
    if len(values) and not (values.min() >= 0 and values.max() <= 1):
        raise StampedeError("scores must be probabilities in [0, 1]: pass logits through probabilities_of")
