"""The figures that a run is refused by are the bytes that it takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from stampede import ConfigError
from stampede.kernels import RowIndex, make_accumulator
from stampede.kernels.accumulate import CpuRowAccumulator
from stampede.training import footprint as footprint_module
from stampede.training.averaging import WeightAverage
from stampede.training.batch import Batch
from stampede.training.build import model_of, optimizer_of
from stampede.training.config import TrainConfig
from stampede.training.footprint import Footprint, footprint
from stampede.training.models import CTRModel
from stampede.training.step import TrainStep

SIZES = {"C1": 1000, "C2": 7, "C3": 300}
CPU = torch.device("cpu")


def make_config(**values: Any) -> TrainConfig:
    small: dict[str, Any] = {"model": "deepfm", "hidden": (8,), "embedding_dim": 6, "batch_size": 64}
    return TrainConfig.check(**small | values)


def trained(config: TrainConfig) -> tuple[CTRModel, Any, TrainStep]:
    """A model and its optimizer after one step, with all the state that they will have."""
    model = model_of(config, SIZES, n_dense=2)
    optimizer = optimizer_of(config, model)
    take_step = TrainStep(model, optimizer, batch_size=config.batch_size)
    ids = torch.stack([torch.randint(size, (config.batch_size,)) for size in SIZES.values()], 1)
    labels = torch.randint(2, (config.batch_size,), dtype=torch.int8)
    take_step(Batch(torch.rand(config.batch_size, 2), ids.int(), labels))
    return model, optimizer, take_step


def tables_of(model: CTRModel) -> list[torch.nn.Parameter]:
    return [model.embedding.weight] + ([model.first_order.weight] if model.first_order is not None else [])


def estimate(config: TrainConfig, model: CTRModel) -> Footprint:
    return footprint(config, list(SIZES.values()), first_order=model.first_order is not None)


@pytest.mark.parametrize("name", ["deepfm", "dlrm"])
def test_weights_are_those_of_the_models_tables(name: str) -> None:
    """With and without first-order weights."""
    config = make_config(model=name)
    model = model_of(config, SIZES, n_dense=2)

    figures = estimate(config, model)

    assert figures.rows == 1307
    assert figures.values == (7 if name == "deepfm" else 6)
    assert figures.tables == sum(table.nbytes for table in tables_of(model))


@pytest.mark.parametrize("name", ["deepfm", "dlrm"])
@pytest.mark.parametrize(
    "values",
    [
        {"optimizer": "cowclip"},
        {"optimizer": "adam"},
        {"optimizer": "adam", "clip": "field", "clip_norm": 0.1},
        {"optimizer": "cowclip", "ema_decay": 0.99},
        {"optimizer": "adagrad"},
        {"optimizer": "sgd"},
        {"optimizer": "helen"},
        {"optimizer": "cowclip", "update": "touched"},
    ],
    ids=str,
)
def test_state_is_what_optimizer_and_running_mean_keep_of_the_tables(
    values: dict[str, Any], name: str
) -> None:
    config = make_config(model=name, **values)
    model, optimizer, _ = trained(config)
    tables = tables_of(model)
    kept = sum(
        value.nbytes
        for table in tables
        for value in optimizer.state[table].values()
        if torch.is_tensor(value) and value.shape == table.shape
    )
    if config.ema_decay > 0:
        names = [key for key, parameter in model.named_parameters() if any(parameter is t for t in tables)]
        with WeightAverage(model, decay=config.ema_decay).applied() as weights:
            kept += sum(weights[key].nbytes for key in names)

    figures = estimate(config, model)

    # and, for what has no kernel of its own, whole gradients of the tables while a step lasts
    passing = figures.state - kept
    copies = {"helen": 4, "adagrad": 2, "sgd": 2}.get(config.optimizer, 2 if config.clip == "field" else 0)
    assert passing == copies * figures.tables


@pytest.mark.parametrize("batch_size", [1, 64, 500, 5000])
@pytest.mark.parametrize("name", ["deepfm", "dlrm"])
def test_batch_is_what_the_sums_of_its_rows_take(name: str, batch_size: int) -> None:
    config = make_config(model=name, batch_size=batch_size)
    model = model_of(config, SIZES, n_dense=2)
    accumulator = make_accumulator(
        list(SIZES.values()),
        config.embedding_dim,
        batch_rows=batch_size,
        linear=model.first_order is not None,
    )
    assert isinstance(accumulator, CpuRowAccumulator)
    sums, linear_sums = accumulator.finish()
    index: RowIndex = sums.index
    tensors = [index.rows, index.counts, index.slots, sums.sums]
    tensors += [linear_sums.sums] if linear_sums is not None else []

    assert estimate(config, model).batch == sum(tensor.nbytes for tensor in tensors)


def test_the_total_is_the_sum_and_the_line_names_each() -> None:
    figures = Footprint(rows=2_000_000, values=11, tables=88_000_000, state=176_000_000, batch=2_500_000_000)

    assert figures.total == 2_764_000_000
    assert figures.describe() == (
        "memory: 2.76 GB for tables of 2,000,000 rows x 11 values "
        "(88 MB weights, 176 MB optimizer, 2.50 GB batch), besides the data"
    )


def test_tables_beyond_what_is_left_are_refused_with_both_figures_and_a_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A part of what is left is kept for the data, the network and torch itself."""
    figures = Footprint(rows=90_000_000, values=11, tables=3_960_000_000, state=7_920_000_000, batch=1)
    monkeypatch.setattr(footprint_module, "available_memory", lambda: 10_000_000_000)

    message = (
        r"90,000,000 rows x 11 values take 11\.88 GB with the optimizer's state, "
        r"and 8\.50 GB are .* on cpu; prepare with --min-count, .* or lower --embedding-dim"
    )
    with pytest.raises(ConfigError, match=message):
        figures.check(CPU)


def test_what_just_fits_is_let_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = Footprint(rows=1, values=1, tables=500, state=250, batch=100)

    monkeypatch.setattr(footprint_module, "available_memory", lambda: 1001)
    figures.check(CPU)
    monkeypatch.setattr(footprint_module, "available_memory", lambda: 999)
    with pytest.raises(ConfigError):
        figures.check(CPU)


def test_no_machine_has_room_for_10_to_the_15_rows() -> None:
    figures = footprint(make_config(), [10**15], first_order=True)

    with pytest.raises(ConfigError, match="the tables do not fit"):
        figures.check(CPU)
