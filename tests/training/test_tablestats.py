"""Norms by field and the clip by frequency, against a plain loop over ids."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from stampede.pipeline.dataset import Dataset
from stampede.training.config import TrainConfig
from stampede.training.tablestats import FREQUENCY_BINS, TableStatistics, training_counts
from stampede.training.trainer import Trainer

CPU = torch.device("cpu")
RATIO = 3e-3  # so small that fresh weights are clipped, some of them


def measured(dataset: Dataset, run: Path, **values: Any) -> tuple[Trainer, TableStatistics, torch.Tensor]:
    """One step of a batch of 200 rows, what was measured of it, and the weights before."""
    settings = TrainConfig(**{"hidden": (8,), "batch_size": 200, "l2": 1e-3, "loader": "device", **values})
    trainer = Trainer(settings, dataset, device=CPU, run=run)
    weights = trainer.model.embedding.weight.detach().clone()
    found: list[TableStatistics] = []
    trainer.take_step(next(iter(trainer.train)), watch=lambda g: found.append(trainer.watch.measure(g)))
    return trainer, found[0], weights


@pytest.fixture(scope="module")
def dataset(small_dataset: Path) -> Dataset:
    return Dataset.open(small_dataset)


def test_cowclip_by_hand(dataset: Dataset, tmp_path: Path) -> None:
    trainer, statistics, weights = measured(dataset, tmp_path, ratio=RATIO, zeta=1e-5)
    batch = next(iter(trainer.train))
    embedding = trainer.model.embedding
    # the gradient from autograd, at the weights before the step
    fresh = Trainer(trainer.config, dataset, device=CPU, run=tmp_path)
    logits = fresh.model(batch.dense, batch.ids)
    torch.nn.functional.binary_cross_entropy_with_logits(logits, batch.labels.float()).backward()  # type: ignore[no-untyped-call]
    gradient = fresh.model.embedding.weight.grad
    assert gradient is not None
    gradient = gradient + 2e-3 * weights
    counts = training_counts(dataset)

    squares, rows, clipped = Counter[str](), Counter[str](), Counter[str]()
    in_bin, clipped_in_bin, factors = Counter[int](), Counter[int](), Counter[int]()
    for number, name in enumerate(dataset.fields):
        start = int(embedding.starts[number])
        for identifier, occurrences in Counter(batch.ids[:, number].tolist()).items():
            row = start + identifier
            norm = float(gradient[row].double().norm())
            limit = RATIO * occurrences * max(float(weights[row].norm()), RATIO * math.sqrt(10) * 1e-5)
            bin_of = max(i for i, first in enumerate((0, *FREQUENCY_BINS[1:])) if counts[row] >= first)
            squares[name] += norm**2  # type: ignore[assignment]
            rows[name] += 1
            in_bin[bin_of] += 1
            clipped[name] += norm > limit
            clipped_in_bin[bin_of] += norm > limit
            factors[bin_of] += min(1.0, limit / norm)  # type: ignore[assignment]

    assert 0 < sum(clipped.values()) < sum(rows.values())
    for number, name in enumerate(dataset.fields):
        field = statistics.record["fields"][name]
        assert (field["rows"], field["clipped"]) == (rows[name], clipped[name])
        assert field["gradient_norm"] == pytest.approx(squares[name] ** 0.5, rel=1e-4)
        part = weights[embedding.starts[number] : embedding.starts[number + 1]]
        assert field["weight_norm"] == pytest.approx(float(part.norm()))
    for number, entry in enumerate(statistics.record["frequency"]):
        assert (entry["rows"], entry["clipped"]) == (in_bin[number], clipped_in_bin[number])
        if in_bin[number]:
            assert entry["mean_factor"] == pytest.approx(factors[number] / in_bin[number], rel=1e-4)
    assert [entry["to"] for entry in statistics.record["frequency"]][-2:] == [65535, None]


def test_without_a_clip_there_is_no_factor(dataset: Dataset, tmp_path: Path) -> None:
    _, statistics, _ = measured(dataset, tmp_path, clip="none")

    assert statistics.record["frequency"] is None
    assert {field["clipped"] for field in statistics.record["fields"].values()} == {None}
    assert len(statistics.factors) == 0


@pytest.mark.parametrize("update", ["dense", "touched"])
@pytest.mark.parametrize("clip", ["global", "field", "column", "adaptive-field"])
def test_other_clips_are_measured_as_they_act(
    dataset: Dataset, tmp_path: Path, clip: str, update: str
) -> None:
    limit = {"ratio": 1e-4} if clip == "adaptive-field" else {"clip_norm": 1e-4}
    trainer, statistics, _ = measured(dataset, tmp_path, clip=clip, update=update, zeta=0.0, **limit)

    acting, _ = trainer.optimizer.clipped[trainer.model.embedding.weight]
    in_batch = sum(entry["clipped"] for entry in statistics.record["frequency"])
    assert 0 < in_batch <= int(acting)
    if clip == "column":
        largest = (statistics.factors * statistics.norms).max()
        assert float(largest) == pytest.approx(1e-4, rel=1e-4)


def test_watching_changes_nothing(dataset: Dataset, tmp_path: Path) -> None:
    trainer, _, _ = measured(dataset, tmp_path)
    other = Trainer(trainer.config, dataset, device=CPU, run=tmp_path)

    other.take_step(next(iter(other.train)))

    assert torch.equal(other.model.embedding.weight, trainer.model.embedding.weight)
