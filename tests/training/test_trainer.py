"""The trainer: best epoch, early stop, metrics, divergence, checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from stampede import CheckpointError, StampedeError
from stampede.pipeline import PrepareOptions, Schema, SplitRule, prepare
from stampede.pipeline.dataset import Dataset
from stampede.training.build import model_of, optimizer_of
from stampede.training.checkpoint import load_best, load_training_state, save_checkpoint
from stampede.training.config import TrainConfig
from stampede.training.evaluation import EVALUATION_BATCH, evaluate
from stampede.training.metrics import Metrics
from stampede.training.resident import DeviceLoader
from stampede.training.step import TrainStep
from stampede.training.trainer import Trainer, TrainResult

CPU = torch.device("cpu")


def config(**values: Any) -> TrainConfig:
    return TrainConfig(**{"hidden": (16,), "epochs": 2, "batch_size": 256, **values})


@pytest.fixture(scope="module")
def dataset(small_dataset: Path) -> Dataset:
    return Dataset.open(small_dataset)


def fit(dataset: Dataset, run: Path, **values: Any) -> TrainResult:
    run.mkdir(exist_ok=True)
    return Trainer(config(**values), dataset, device=CPU, run=run).fit()


def copy_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def lines_of(run: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


def test_tensorboard_has_the_numbers_of_the_records(dataset: Dataset, tmp_path: Path) -> None:
    fit(dataset, tmp_path, epochs=2)

    board = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    epochs = [(scalar.step, scalar.value) for scalar in board.Scalars("epoch/valid/auc")]
    records = [(line["step"], pytest.approx(line["valid"]["auc"])) for line in lines_of(tmp_path, "epoch")]
    assert epochs == records
    names = set(board.Tags()["scalars"])
    assert {"step/cross_entropy", "step/regulariser", "step/clipped_share", "result/test/auc"} <= names


@pytest.mark.parametrize("model", ["wide-deep", "deepfm", "dcn", "dcn-v2", "dcn-v2-mix"])
def test_every_model_trains(dataset: Dataset, tmp_path: Path, model: str) -> None:
    result = fit(dataset, tmp_path, model=model)

    assert result.steps == 2 * 5
    assert result.test is not None
    assert result.test.auc is not None


def test_best_is_the_highest_valid_auc_and_the_test_is_of_it(dataset: Dataset, tmp_path: Path) -> None:
    result = fit(
        dataset, tmp_path, epochs=5, learning_rate=0.01, embedding_learning_rate=0.01, warmup_epochs=0
    )

    epochs = lines_of(tmp_path, "epoch")
    best = max(epochs, key=lambda line: line["valid"]["auc"])
    model = model_of(config(), dataset.sizes, n_dense=13)
    load_best(tmp_path, model)
    test = evaluate(model, DeviceLoader(dataset, "test", batch_size=EVALUATION_BATCH))
    assert result.best_epoch == best["epoch"]
    assert result.valid is not None
    assert result.valid.auc == best["valid"]["auc"]
    assert result.test == test


@pytest.mark.parametrize("keep", [1, 2])
def test_the_best_and_the_last_checkpoints_are_kept(dataset: Dataset, tmp_path: Path, keep: int) -> None:
    result = fit(
        dataset, tmp_path,
        epochs=7, learning_rate=0.03, embedding_learning_rate=0.1, warmup_epochs=0, keep_checkpoints=keep,
    )  # fmt: skip

    kept = {folder.name for folder in (tmp_path / "checkpoints").iterdir()}
    last = {f"step-{5 * epoch}" for epoch in range(8 - keep, 8)}
    assert result.best_epoch < 6
    assert kept == {f"step-{5 * result.best_epoch}"} | last


def test_patience_stops_after_epochs_without_a_better_valid_auc(dataset: Dataset, tmp_path: Path) -> None:
    fit(
        dataset, tmp_path,
        epochs=40, patience=2, learning_rate=0.01, embedding_learning_rate=0.01, warmup_epochs=0,
    )  # fmt: skip

    epochs = lines_of(tmp_path, "epoch")
    assert len(epochs) < 40
    assert [line["best"] for line in epochs[-3:]] == [True, False, False]


def test_max_steps_stops_in_the_middle_of_an_epoch(dataset: Dataset, tmp_path: Path) -> None:
    result = fit(dataset, tmp_path, max_steps=7)

    assert (result.steps, result.best_epoch) in {(7, 1), (7, 2)}
    assert result.test is not None


def test_a_diverging_run_stops_with_the_step(dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(StampedeError, match=r"not finite at step \d+"):
        fit(dataset, tmp_path, learning_rate=1e30, embedding_learning_rate=1e30, warmup_epochs=0, epochs=3)


def test_steps_are_logged_with_the_cross_entropy_and_the_regulariser_apart(
    dataset: Dataset, tmp_path: Path
) -> None:
    fit(dataset, tmp_path, batch_size=16, epochs=1, warmup_epochs=1)

    (first, *_) = lines_of(tmp_path, "step")
    assert first["step"] == 50
    assert 0 < first["cross_entropy"] < 2
    assert first["regulariser"] > 0
    assert 0 <= first["clipped_share"] <= 1
    assert first["learning_rates"]["dense"] == pytest.approx(
        8e-4 * 49 / len(DeviceLoader(dataset, "train", batch_size=16)), rel=1e-3
    )


class TestOneClass:
    """The AUC is undefined; the run goes on and log loss decides when to stop."""

    @pytest.fixture
    def dataset(self, tmp_path: Path, small_log: Path) -> Dataset:
        log = tmp_path / "log.tsv"
        rows = small_log.read_text().splitlines()[:300]
        log.write_text("\n".join("0\t" + row.split("\t", 1)[1] for row in rows))
        return prepare(Schema.preset("criteo"), [log], tmp_path / "ds")

    def test_it_trains_and_says_undefined(self, dataset: Dataset, tmp_path: Path) -> None:
        result = fit(dataset, tmp_path / "run", epochs=3, patience=1)

        assert result.valid is not None
        assert result.test is not None
        assert result.valid.auc is result.test.auc is None
        assert result.best_epoch == 3


def test_without_valid_and_test_the_last_epoch_is_best(small_log: Path, tmp_path: Path) -> None:
    options = PrepareOptions(split=SplitRule(valid_fraction=0, test_fraction=0))
    dataset = prepare(Schema.preset("criteo"), [small_log], tmp_path / "ds", options=options)

    result = fit(dataset, tmp_path / "run", epochs=3, patience=1)

    assert (result.valid, result.test, result.best_epoch) == (None, None, 3)


def test_accumulated_evaluation_does_not_depend_on_the_batch_size(dataset: Dataset) -> None:
    model = model_of(config(), dataset.sizes, n_dense=13)

    whole, pieces = (
        evaluate(model, DeviceLoader(dataset, "valid", batch_size=size)) for size in (10_000, 13)
    )

    def figures(metrics: Metrics) -> list[float]:
        return [value for value in (metrics.auc, metrics.logloss, metrics.mean_score) if value is not None]

    assert figures(whole) == pytest.approx(figures(pieces), abs=1e-6)


class TestCheckpoint:
    def test_training_goes_on_from_one_bit_for_bit(self, dataset: Dataset, tmp_path: Path) -> None:
        batches = list(DeviceLoader(dataset, "train", batch_size=256))
        model = model_of(config(), dataset.sizes, n_dense=13)
        optimizer = optimizer_of(config(), model)
        take_step = TrainStep(model, optimizer, batch_size=256)
        for batch in batches[:2]:
            take_step(batch)
        folder = save_checkpoint(tmp_path, step=2, model=model, optimizer=optimizer, state={"epoch": 1})

        again = model_of(config(seed=9), dataset.sizes, n_dense=13)
        optimizer_again = optimizer_of(config(), again)
        load_training_state(folder, again, optimizer_again)
        take_step_again = TrainStep(again, optimizer_again, batch_size=256)
        for batch in batches[2:]:
            take_step(batch)
            take_step_again(batch)

        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, again.state_dict()[name]), name

    def test_the_mean_is_kept_beside_the_weights_that_train(self, dataset: Dataset, tmp_path: Path) -> None:
        trainer = Trainer(config(ema_decay=0.9, epochs=1), dataset, device=CPU, run=tmp_path)
        trained: dict[str, torch.Tensor] = {}
        trainer.schedule.step = lambda: trained.update(copy_of(trainer.model))  # type: ignore[method-assign]

        trainer.fit()

        kept = model_of(config(), dataset.sizes, n_dense=13)
        load_best(tmp_path, kept)
        going_on = model_of(config(), dataset.sizes, n_dense=13)
        load_training_state(tmp_path / "best", going_on, optimizer_of(config(), going_on))
        weight = "network.output.weight"
        assert torch.equal(going_on.state_dict()[weight], trained[weight])
        assert not torch.equal(kept.state_dict()[weight], trained[weight])

    def test_a_damaged_one_is_refused(self, dataset: Dataset, tmp_path: Path) -> None:
        fit(dataset, tmp_path)
        file = tmp_path / "best" / "model.safetensors"
        file.write_bytes(file.read_bytes()[:1000])

        with pytest.raises(CheckpointError, match="damaged"):
            load_best(tmp_path, model_of(config(), dataset.sizes, n_dense=13))

    def test_one_of_another_model_is_refused(self, dataset: Dataset, tmp_path: Path) -> None:
        fit(dataset, tmp_path)

        with pytest.raises(CheckpointError, match="another model"):
            load_best(tmp_path, model_of(config(hidden=(17,)), dataset.sizes, n_dense=13))

    def test_there_is_none_yet(self, dataset: Dataset, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="no finished epoch"):
            load_best(tmp_path, model_of(config(), dataset.sizes, n_dense=13))
