"""Resampled metrics and DeLong's test, against scikit-learn, the definition, and known distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import log_loss as sklearn_log_loss
from sklearn.metrics import roc_auc_score

from stampede import StampedeError
from stampede.kernels.cpu.resample import draw, weighted_metrics
from stampede.training.bootstrap import Interval, ScoredRows, bootstrap, delong, two_sided_p
from stampede.training.metrics import probabilities_of

Rows = tuple[NDArray[np.int8], NDArray[np.float32]]


def rows(n: int, *, seed: int, shift: float = 1.0, ties: bool = False) -> Rows:
    rng = np.random.default_rng(seed)
    labels = (rng.random(n) < 0.3).astype(np.int8)
    logits = (rng.normal(size=n) + shift * labels).astype(np.float32)
    return labels, np.round(logits, 1) if ties else logits


class TestDraw:
    def test_as_many_rows_are_drawn_as_there_are(self) -> None:
        assert draw(1000, seed=1).sum() == 1000
        assert draw(1, seed=1).tolist() == [1]

    def test_rows_are_drawn_as_often_as_the_binomial_says(self) -> None:
        n = 200_000
        counts = np.bincount(draw(n, seed=3), minlength=6)[:6]

        expected = [n * math.exp(-1) / math.factorial(k) for k in range(6)]
        assert counts == pytest.approx(expected, abs=5 * math.sqrt(n * 0.25))

    def test_every_place_has_the_same_chance(self) -> None:
        total = np.zeros(50)
        for seed in range(4000):
            total += draw(50, seed=seed * 7919)

        chi_squared = float(((total - 4000) ** 2 / 4000).sum())
        assert 20 < chi_squared < 90  # 49 degrees of freedom: mean 49, deviation 10


class TestWeightedMetrics:
    @pytest.mark.parametrize("ties", [False, True])
    def test_are_those_of_scikit_learn(self, ties: bool) -> None:
        labels, logits = rows(500, seed=0, ties=ties)
        weights = draw(500, seed=1)
        scored = ScoredRows.of(labels, logits)

        auc, loss = weighted_metrics(weights, scored.order, scored.ends, scored.clicked, scored.losses)

        assert auc == pytest.approx(roc_auc_score(labels, logits, sample_weight=weights), abs=1e-12)
        expected = sklearn_log_loss(labels, probabilities_of(logits), sample_weight=weights)
        assert loss == pytest.approx(expected, abs=1e-12)

    def test_rows_that_count_once_give_the_plain_metrics(self) -> None:
        labels, logits = rows(300, seed=2, ties=True)
        scored = ScoredRows.of(labels, logits)

        auc, loss = weighted_metrics(
            np.ones(300, np.uint8), scored.order, scored.ends, scored.clicked, scored.losses
        )

        assert auc == scored.auc
        assert loss == pytest.approx(scored.logloss, rel=1e-14)

    def test_one_class_has_no_auc(self) -> None:
        scored = ScoredRows.of([0, 1, 1], [0.0, 1.0, 2.0])
        weights = np.array([0, 2, 1], np.uint8)

        auc, loss = weighted_metrics(weights, scored.order, scored.ends, scored.clicked, scored.losses)

        assert math.isnan(auc)
        assert loss > 0


class TestBootstrap:
    def test_all_models_get_the_same_resamples_whatever_the_threads(self) -> None:
        labels, logits = rows(400, seed=0)
        models = [ScoredRows.of(labels, logits), ScoredRows.of(labels, logits)]

        one = bootstrap(models, resamples=50, seed=5, threads=1)
        other = bootstrap(models, resamples=50, seed=5, threads=4)

        assert np.array_equal(one.auc, other.auc)
        assert np.array_equal(one.auc[0], one.auc[1])
        assert len(set(one.auc[0])) > 40
        assert not np.array_equal(one.auc, bootstrap(models, resamples=50, seed=6).auc)

    def test_log_loss_scatters_as_a_mean_does(self) -> None:
        labels, logits = rows(2000, seed=1)
        scored = ScoredRows.of(labels, logits)

        resampled = bootstrap([scored], resamples=2000, seed=0)

        expected = scored.losses.std() / math.sqrt(2000)
        assert resampled.logloss.std() == pytest.approx(expected, rel=0.06)
        assert resampled.logloss.mean() == pytest.approx(scored.logloss, abs=4 * expected / math.sqrt(2000))

    def test_a_difference_of_aucs_scatters_as_delong_says(self) -> None:
        labels, logits = rows(2000, seed=1)
        other = logits + np.random.default_rng(9).normal(size=2000).astype(np.float32)
        test = delong(labels, logits, other)

        resampled = bootstrap(
            [ScoredRows.of(labels, logits), ScoredRows.of(labels, other)], resamples=2000, seed=0
        )

        assert test is not None
        assert (resampled.auc[0] - resampled.auc[1]).std() == pytest.approx(test.standard_error, rel=0.06)

    def test_models_of_other_rows_are_refused(self) -> None:
        with pytest.raises(ValueError, match="same rows"):
            bootstrap([ScoredRows.of([0, 1], [0, 1]), ScoredRows.of([0], [0])], resamples=1, seed=0)

    def test_no_rows_are_refused(self) -> None:
        with pytest.raises(StampedeError, match="no rows"):
            ScoredRows.of([], [])


class TestIntervalAndP:
    def test_interval_is_the_middle_of_what_is_defined(self) -> None:
        values = np.append(np.arange(1001.0), [np.nan])

        interval = Interval.of(values)

        assert interval is not None
        assert [interval.low, interval.high] == pytest.approx([25.0, 975.0])
        assert Interval.of(np.array([np.nan])) is None

    def test_p_counts_the_rarer_side_twice(self) -> None:
        assert two_sided_p(np.array([1.0] * 97 + [-1.0] * 2)) == pytest.approx(2 * 3 / 100)
        assert two_sided_p(np.zeros(10)) == 1.0
        assert two_sided_p(np.array([np.nan])) is None


def delong_by_definition(
    labels: NDArray[np.int8], one: NDArray[np.float32], other: NDArray[np.float32]
) -> tuple[float, float]:
    """Return difference and variance from a comparison of every pair (DeLong et al. 1988, eq. 4 to 6)."""
    v10, v01 = [], []
    for scores in (one.astype(float), other.astype(float)):
        clicks, others = scores[labels == 1], scores[labels == 0]
        psi = (clicks[:, None] > others) + 0.5 * (clicks[:, None] == others)
        v10.append(psi.mean(axis=1))
        v01.append(psi.mean(axis=0))
    s10, s01 = np.cov(v10), np.cov(v01)
    s = s10 / len(v10[0]) + s01 / len(v01[0])
    contrast = np.array([1.0, -1.0])
    return float(v10[0].mean() - v10[1].mean()), float(contrast @ s @ contrast)


class TestDeLong:
    @pytest.mark.parametrize("ties", [False, True])
    def test_is_that_of_the_definition(self, ties: bool) -> None:
        labels, one = rows(300, seed=3, ties=ties)
        _, other = rows(300, seed=4, ties=ties)
        other = (other + one).astype(np.float32)

        test = delong(labels, one, other)
        difference, variance = delong_by_definition(labels, one, other)

        assert test is not None
        assert test.difference == pytest.approx(difference, abs=1e-12)
        assert test.standard_error == pytest.approx(math.sqrt(variance), rel=1e-10)
        assert test.z == pytest.approx(difference / math.sqrt(variance), rel=1e-8)
        assert test.p == pytest.approx(math.erfc(abs(test.z) / math.sqrt(2)), rel=1e-9)

    def test_difference_is_that_of_the_aucs(self) -> None:
        labels, one = rows(1000, seed=5)
        other = -one

        test = delong(labels, one, other)

        assert test is not None
        assert test.difference == pytest.approx(roc_auc_score(labels, one) - roc_auc_score(labels, other))
        assert test.p < 1e-6

    def test_a_model_does_not_differ_from_itself_in_other_units(self) -> None:
        labels, one = rows(200, seed=6)

        test = delong(labels, one, 2 * one + 3)

        assert test is not None
        assert (test.difference, test.p) == (0.0, 1.0)
        assert test.standard_error == pytest.approx(0, abs=1e-9)

    def test_one_class_is_undefined(self) -> None:
        assert delong([1, 1, 1], [1, 2, 3], [3, 2, 1]) is None


def test_no_difference_is_called_one_as_often_as_the_level_says() -> None:
    by_delong, by_bootstrap, trials = 0, 0, 300
    for trial in range(trials):
        rng = np.random.default_rng(trial)
        labels = (rng.random(250) < 0.4).astype(np.int8)
        signal = labels + rng.normal(size=250)
        one, other = (signal + rng.normal(size=250) for _ in range(2))  # equally good, correlated
        test = delong(labels, one, other)
        resampled = bootstrap(
            [ScoredRows.of(labels, one), ScoredRows.of(labels, other)], resamples=200, seed=trial
        )
        p = two_sided_p(resampled.auc[0] - resampled.auc[1])
        assert test is not None
        assert p is not None
        by_delong += test.p < 0.05
        by_bootstrap += p < 0.05

    # 5% of 300 is 15, deviation 3.8
    assert 4 <= by_delong <= 27
    assert 4 <= by_bootstrap <= 27


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    truth = 0.5 * math.erfc(-1 / 2)  # AUC of two normals, one deviation apart: Phi(1 / sqrt 2)
    held, trials = 0, 300
    for trial in range(trials):
        labels, logits = rows(250, seed=1000 + trial)
        resampled = bootstrap([ScoredRows.of(labels, logits)], resamples=200, seed=trial)
        interval = Interval.of(resampled.auc[0])
        assert interval is not None
        held += interval.low <= truth <= interval.high

    assert 268 <= held <= 298  # 285 expected, deviation 3.8, a little low for percentiles
