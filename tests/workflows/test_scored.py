"""Scores of a split by frequency, against scikit-learn and the counts that the dataset itself keeps."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from sklearn import metrics

from stampede.pipeline import Dataset
from stampede.pipeline.progress import Silent
from stampede.pipeline.vocabulary import Vocabulary
from stampede.workflows.evaluate import run_evaluate
from stampede.workflows.reporting.scored import (
    CODE_NAMES,
    ScoredRows,
    codes_of,
    entropy,
    quantile_bins,
    score_split,
    standard_error,
)
from stampede.workflows.run import Run


@pytest.fixture(scope="module")
def scored(small_run: Path, small_dataset: Path) -> ScoredRows:
    dataset = Dataset.open(small_dataset)
    return score_split(Run.open(small_run), dataset, "test", device=torch.device("cpu"), progress=Silent())


@pytest.fixture(scope="module")
def rows(small_run: Path, small_dataset: Path) -> pl.DataFrame:
    """The test rows with the ids' counts of the dataset and the scores of ``evaluate``'s path."""
    from stampede.training.evaluation import EVALUATION_BATCH, logits_of
    from stampede.training.resident import DeviceLoader

    dataset = Dataset.open(small_dataset)
    loader = DeviceLoader(dataset, "test", batch_size=EVALUATION_BATCH)
    model = Run.open(small_run).load_model(torch.device("cpu"))
    logits = torch.cat([logits for logits, _ in logits_of(model, loader)]).double()
    return dataset.scan("test").collect().with_columns(score=pl.Series(torch.sigmoid(logits).numpy()))


def test_codes_follow_the_training_count() -> None:
    counts = np.array([0, 70, 500, 1, 3, 4, 15, 16, 0, 65_535, 65_536, 9_000_000])
    vocabulary = Vocabulary(pl.Series([f"v{number}" for number in range(9)]), counts)

    names = [CODE_NAMES[code] for code in codes_of(vocabulary)]

    assert names == [
        "unseen or rare", "empty", "unseen or rare", "1–3", "1–3", "4–15", "4–15", "16–63", "unseen or rare",
        "16K–64K", "64K+", "64K+",
    ]  # fmt: skip


def test_all_rows_are_evaluated_as_evaluate_does(scored: ScoredRows, small_run: Path) -> None:
    evaluated = run_evaluate(small_run, data=None, split="test")

    assert scored.metrics == evaluated


@pytest.mark.parametrize("field", ["C1", "C3", "C9"])
def test_groups_of_a_field_are_those_of_the_counts_in_the_dataset(
    scored: ScoredRows, rows: pl.DataFrame, field: str
) -> None:
    ids, counts = rows[field].to_numpy(), rows[f"{field}_count"].to_numpy()

    groups = {group.name: group for group in scored.groups(scored.codes[scored.fields.index(field)])}

    assert sum(group.rows for group in groups.values()) == rows.height
    for name, chosen in {
        "empty": ids == 1,
        "unseen or rare": ids == 2,
        "64–255": (ids > 2) & (counts >= 64) & (counts < 256),
        "256–1K": (ids > 2) & (counts >= 256) & (counts < 1024),
    }.items():
        if not chosen.any():
            assert name not in groups
            continue
        labels, scores = rows["label"].to_numpy()[chosen], rows["score"].to_numpy()[chosen]
        assert groups[name].rows == chosen.sum()
        assert groups[name].clicks == labels.sum()
        assert groups[name].logloss == pytest.approx(metrics.log_loss(labels, scores, labels=[0, 1]))
        if 0 < labels.sum() < len(labels):
            assert groups[name].auc == pytest.approx(metrics.roc_auc_score(labels, scores))


def test_the_rarest_value_is_the_least_count_with_unseen_ones_first(
    scored: ScoredRows, rows: pl.DataFrame
) -> None:
    of_field = [
        pl.when(pl.col(name) == 2).then(0).otherwise(pl.col(f"{name}_count")) for name in scored.fields
    ]
    least = rows.select(pl.min_horizontal(of_field)).to_series().to_numpy()

    groups = {group.name: group.rows for group in scored.groups(scored.rarest)}

    assert groups.get("unseen or rare", 0) == (least == 0).sum()
    assert groups.get("1–3", 0) == ((least >= 1) & (least <= 3)).sum()
    assert groups.get("4–15", 0) == ((least >= 4) & (least <= 15)).sum()
    assert sum(groups.values()) == rows.height


@pytest.mark.parametrize(("clicks", "others"), [(1, 1), (10, 40), (300, 1000)])
def test_the_standard_error_of_a_chance_auc_is_that_of_the_rank_sum_test(clicks: int, others: int) -> None:
    exact = math.sqrt((clicks + others + 1) / (12 * clicks * others))  # Mann and Whitney, 1947

    assert standard_error(0.5, clicks, others) == pytest.approx(exact)


def test_entropy_is_the_log_loss_of_a_constant_score() -> None:
    labels = [0, 0, 0, 1]

    assert entropy(0.25) == pytest.approx(metrics.log_loss(labels, [0.25] * 4))
    assert entropy(0.0) == entropy(1.0) == 0


class TestQuantileBins:
    def rows_of(self, scores: list[float], labels: list[int]) -> ScoredRows:
        values = np.array(scores)
        codes = np.zeros((0, len(scores)), np.uint8)
        return ScoredRows(
            split="test", fields=(), metrics=None,  # type: ignore[arg-type]
            labels=np.array(labels, bool), logits=values, scores=values, codes=codes,
            rarest=np.zeros(len(scores), np.uint8),
        )  # fmt: skip

    def test_worked_by_hand(self) -> None:
        scored = self.rows_of([0.1, 0.2, 0.3, 0.4, 0.6, 0.8], [0, 0, 0, 1, 1, 1])

        low, high = quantile_bins(scored, bins=2)

        assert (low.rows, low.lowest, low.highest, low.click_rate) == (3, 0.1, 0.3, 0.0)
        assert (high.rows, high.lowest, high.highest, high.click_rate) == (3, 0.4, 0.8, 1.0)
        assert [low.mean_score, high.mean_score] == pytest.approx([0.2, 0.6])

    def test_equal_scores_stay_together(self) -> None:
        scored = self.rows_of([0.1, 0.5, 0.5, 0.5, 0.5, 0.9], [0, 1, 0, 1, 0, 1])

        bins = quantile_bins(scored, bins=3)

        assert [part.rows for part in bins] == [1, 5]

    def test_more_bins_than_rows_and_no_rows(self) -> None:
        assert [part.rows for part in quantile_bins(self.rows_of([0.1, 0.2], [0, 1]), bins=20)] == [1, 1]
        assert quantile_bins(self.rows_of([], []), bins=20) == []
