import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve
from sklearn.metrics import log_loss as sklearn_log_loss
from sklearn.metrics import roc_auc_score

from stampede import StampedeError
from stampede.training.metrics import Evaluation, auc, calibration, log_loss, probabilities_of

scores = st.one_of(
    st.floats(0, 1),
    st.sampled_from([0.0, 0.25, 0.25 + 1e-16, 0.5, 1.0]),  # ties, and the ends
)
rows = st.lists(st.tuples(st.integers(0, 1), scores), min_size=1, max_size=60)


@settings(deadline=None)
@given(rows)
def test_auc_and_log_loss_are_scikit_learns(rows: list[tuple[int, float]]) -> None:
    labels, values = zip(*rows, strict=True)

    assert log_loss(labels, values) == pytest.approx(
        sklearn_log_loss(labels, values, labels=[0, 1]), abs=1e-9, rel=1e-9
    )
    if len(set(labels)) == 1:
        assert auc(labels, values) is None
    else:
        assert auc(labels, values) == pytest.approx(roc_auc_score(labels, values), abs=1e-9)


def test_auc_is_scikit_learns_on_many_rows() -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, 100_000)
    values = np.round(generator.normal(size=100_000) + labels, 3)

    assert auc(labels, values) == pytest.approx(roc_auc_score(labels, values), abs=1e-12)


@pytest.mark.parametrize(
    ("labels", "values", "expected"),
    [
        ([0, 1], [0.1, 0.9], 1.0),
        ([1, 0], [0.1, 0.9], 0.0),
        ([0, 1, 0, 1], [0.5, 0.5, 0.5, 0.5], 0.5),
        ([0, 0, 1, 1], [0.1, 0.4, 0.4, 0.8], 0.875),
        ([1, 1], [0.1, 0.9], None),
        ([0], [0.3], None),
        ([], [], None),
    ],
)
def test_auc_of_small_cases(labels: list[int], values: list[float], expected: float | None) -> None:
    assert auc(labels, values) == expected


def test_auc_depends_on_the_order_of_scores_alone() -> None:
    generator = np.random.default_rng(1)
    labels, logits = generator.integers(0, 2, 500), generator.normal(size=500)

    assert auc(labels, logits) == auc(labels, probabilities_of(logits))


@pytest.mark.parametrize("labels", [[True, False], [1.0, 0.0], np.array([1, 0], dtype=np.int8)])
def test_labels_may_be_of_any_kind_of_number(labels: list[float]) -> None:
    assert auc(labels, [0.9, 0.1]) == 1.0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_not_finite_is_an_error_that_names_its_row(value: float) -> None:
    with pytest.raises(StampedeError, match=r"1 of 3 scores are not finite .* in row 1"):
        auc([0, 1, 1], [0.5, value, 0.5])


def test_labels_other_than_zero_and_one_are_an_error() -> None:
    with pytest.raises(StampedeError, match="labels must be 0 or 1"):
        auc([0, 2], [0.5, 0.5])


def test_unequal_columns_are_an_error() -> None:
    with pytest.raises(StampedeError, match=r"\[2\] and scores \[3\]"):
        auc([0, 1], [0.5, 0.5, 0.5])


def test_logits_are_no_probabilities() -> None:
    with pytest.raises(StampedeError, match="probabilities"):
        log_loss([0, 1], [-3.0, 0.5])


def test_log_loss_of_no_rows_is_undefined() -> None:
    assert log_loss([], []) is None


def test_probabilities_are_the_sigmoid_also_far_out_and_keep_ties() -> None:
    logits = np.array([-800.0, -1.0, 0.0, 1.0, 800.0] * 7)

    values = probabilities_of(logits)

    assert values[:5] == pytest.approx([0.0, 1 / (1 + math.e), 0.5, math.e / (1 + math.e), 1.0])
    assert len(set(values.tolist())) == 5


def test_calibration_compares_scores_with_click_rates() -> None:
    table = calibration([0, 1, 0, 1, 1], [0.1, 0.2, 0.6, 0.9, 1.0], bins=2)

    assert table.mean_score == pytest.approx(0.56)
    assert table.click_rate == pytest.approx(0.6)
    assert [(b.lower, b.upper, b.rows) for b in table.bins] == [(0.0, 0.5, 2), (0.5, 1.0, 3)]
    assert [b.mean_score for b in table.bins] == pytest.approx([0.15, 2.5 / 3])
    assert [b.click_rate for b in table.bins] == pytest.approx([0.5, 2 / 3])


def test_the_reliability_table_is_scikit_learns() -> None:
    generator = np.random.default_rng(2)
    values = generator.uniform(size=1000)
    labels = generator.uniform(size=1000) < values

    table = calibration(labels, values, bins=10)

    rates, means = calibration_curve(labels, values, n_bins=10)
    assert [b.click_rate for b in table.bins] == pytest.approx(list(rates))
    assert [b.mean_score for b in table.bins] == pytest.approx(list(means))


def test_an_empty_bin_and_an_empty_table_have_no_means() -> None:
    assert calibration([1], [0.9], bins=2).bins[0].mean_score is None
    assert calibration([], []).click_rate is None


def test_batches_are_evaluated_as_one() -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(50, generator=generator)
    labels = (torch.rand(50, generator=generator) < torch.sigmoid(logits)).long()
    evaluation = Evaluation()

    for start in range(0, 50, 15):
        evaluation.update(logits[start : start + 15], labels[start : start + 15])
    result = evaluation.result()

    values = probabilities_of(logits.numpy())
    assert result.rows == 50
    assert result.auc == pytest.approx(roc_auc_score(labels, values), abs=1e-12)
    assert result.logloss == pytest.approx(sklearn_log_loss(labels, values), abs=1e-12)
    assert result.click_rate == pytest.approx(labels.float().mean().item())
    assert result.mean_score == pytest.approx(values.mean())
    assert sum(b.rows for b in result.calibration.bins) == 50


def test_a_batch_may_be_overwritten_after_it_was_taken() -> None:
    evaluation, logits = Evaluation(), torch.tensor([2.0, -2.0])
    evaluation.update(logits, torch.tensor([1, 0]))

    logits.zero_()

    assert evaluation.result().auc == 1.0


def test_a_diverged_model_is_an_error() -> None:
    evaluation = Evaluation()
    evaluation.update(torch.tensor([1.0, math.inf]), torch.tensor([1, 0]))

    with pytest.raises(StampedeError, match="diverged"):
        evaluation.result()


def test_an_evaluation_of_no_rows_is_undefined() -> None:
    result = Evaluation().result()

    assert result.rows == 0
    assert (result.auc, result.logloss, result.click_rate, result.mean_score) == (None,) * 4


def test_a_column_of_logits_is_refused() -> None:
    with pytest.raises(ValueError, match="must both be"):
        Evaluation().update(torch.zeros(3, 1), torch.zeros(3))
