"""Adagrad and SGD are torch's own, with the regulariser of their groups and the choice of rows.

Both Adagrads put eps beside the root and begin with a given sum; torch's starts at 0 unless told, ours at
0.1, as that of Keras does. A regulariser ``l2 * sum(w^2)`` is torch's ``weight_decay`` of ``2 * l2``.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stampede import ConfigError
from stampede.kernels import count_rows
from stampede.training.loss import cross_entropy
from stampede.training.models import CTRModel, build_model
from stampede.training.optim import SGD, Adagrad

SIZES = (4, 7, 30)
OPTIMIZERS = [Adagrad, SGD]
DTYPES = [torch.float32, torch.float64]


def make_model(dtype: torch.dtype = torch.float64) -> CTRModel:
    generator = torch.Generator().manual_seed(7)
    model = build_model(
        "dcn", sizes=SIZES, n_dense=2, embedding_dim=3, hidden=[5], init_std=0.1, generator=generator
    ).to(dtype)
    assert model.first_order is not None
    with torch.no_grad():
        model.first_order.weight.fill_(0.1)
    return model


def make_batch(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.stack([(torch.rand(20, generator=generator) ** 3 * size).long() for size in SIZES], 1)
    return torch.rand(20, 2, generator=generator), ids, torch.randint(0, 2, (20,), generator=generator)


def groups_of(model: CTRModel, *, l2: float) -> list[dict[str, Any]]:
    return model.parameter_groups(
        learning_rate=0.02, embedding_learning_rate=0.01, l2=l2, l2_cross=l2 / 2, clip="none"
    )


def torchs_groups(model: CTRModel, *, l2: float) -> list[dict[str, Any]]:
    groups = groups_of(model, l2=l2)
    return [{"params": g["params"], "lr": g["lr"], "weight_decay": 2 * g["l2"]} for g in groups]


def train_step(model: CTRModel, optimizer: torch.optim.Optimizer, seed: int) -> None:
    dense, ids, labels = make_batch(seed)
    optimizer.zero_grad()
    torch.autograd.backward(cross_entropy(model(dense.to(model.embedding.weight.dtype), ids), labels))
    optimizer.step()


def assert_close(found: CTRModel, expected: CTRModel, dtype: torch.dtype) -> None:
    weights = found.state_dict()
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    for name, value in expected.state_dict().items():
        assert (weights[name] - value).abs().max() <= tolerance, name


# --- against torch ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("l2", [0.0, 0.05])
@pytest.mark.parametrize(("initial", "eps"), [(0.0, 1e-10), (0.1, 1e-7), (0.5, 1e-2)])
def test_adagrad_is_torchs(initial: float, eps: float, l2: float, dtype: torch.dtype) -> None:
    model, expected = make_model(dtype), make_model(dtype)
    optimizer = Adagrad(groups_of(model, l2=l2), initial=initial, eps=eps)
    torchs = torch.optim.Adagrad(torchs_groups(expected, l2=l2), initial_accumulator_value=initial, eps=eps)

    for seed in range(5):
        train_step(model, optimizer, seed)
        train_step(expected, torchs, seed)

    assert_close(model, expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("l2", [0.0, 0.05])
def test_sgd_is_torchs(l2: float, dtype: torch.dtype) -> None:
    model, expected = make_model(dtype), make_model(dtype)
    optimizer, torchs = SGD(groups_of(model, l2=l2)), torch.optim.SGD(torchs_groups(expected, l2=l2))

    for seed in range(5):
        train_step(model, optimizer, seed)
        train_step(expected, torchs, seed)

    assert_close(model, expected, dtype)


def test_adagrad_begins_with_the_sum_of_keras_unless_told() -> None:
    weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    weight.grad = torch.full_like(weight, 2.0)

    Adagrad([weight], lr=1.0).step()

    assert float(weight.detach()) == pytest.approx(-2.0 / ((0.1 + 4.0) ** 0.5 + 1e-7), rel=1e-12)


# --- the rows of the batch alone ----------------------------------------------------------------


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("l2", [0.0, 0.05])
@pytest.mark.parametrize("optimizer_type", OPTIMIZERS)
def test_touched_updates_the_rows_of_the_batch_as_all_are_and_leaves_the_others(
    optimizer_type: type[Adagrad | SGD], l2: float, sparse: bool
) -> None:
    """Regulariser included: a row gets none while no batch has it."""
    torch.manual_seed(0)
    table = nn.Embedding(6, 2, sparse=sparse, dtype=torch.float64)
    start = table.weight.detach().clone()
    optimizer = optimizer_type(
        [{"params": table.parameters(), "kind": "embedding", "l2": l2}], 0.1, update="touched"
    )
    rows = torch.tensor([1, 1, 3])

    def by_hand(weights: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        counts = count_rows(rows, 6).unsqueeze(1)
        grads = counts * 2 * weights + 2 * l2 * weights
        total = total + torch.where(counts > 0, grads.square(), 0.0)
        way = 0.1 * grads / (total.sqrt() + 1e-7) if optimizer_type is Adagrad else 0.1 * grads
        return torch.where(counts > 0, weights - way, weights), total

    expected, total = start, torch.full_like(start, 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        torch.autograd.backward(table(rows).square().sum())
        optimizer.step()
        expected, total = by_hand(expected, total)

    torch.testing.assert_close(table.weight.detach(), expected, rtol=1e-12, atol=1e-14)
    others = torch.tensor([0, 2, 4, 5])
    assert torch.equal(table.weight.detach()[others], start[others])
    if optimizer_type is Adagrad:
        assert torch.equal(optimizer.state[table.weight]["sum"][others], torch.full_like(start[others], 0.1))


@pytest.mark.parametrize("optimizer_type", OPTIMIZERS)
def test_touched_takes_the_rows_from_the_counts_where_they_are_known(
    optimizer_type: type[Adagrad | SGD],
) -> None:
    """So a row of the batch whose gradient is 0 gets its regulariser too."""
    table = nn.Parameter(torch.ones(3, 2))
    table.grad = torch.zeros_like(table)
    optimizer = optimizer_type([{"params": [table], "kind": "embedding", "l2": 0.1}], 0.1, update="touched")

    optimizer.step(counts={table: torch.tensor([0, 4, 0])})

    assert (table.detach() != 1.0).any(1).tolist() == [False, True, False]


@pytest.mark.parametrize("optimizer_type", OPTIMIZERS)
def test_all_rows_decay_where_every_row_is_updated(optimizer_type: type[Adagrad | SGD]) -> None:
    model = make_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = optimizer_type(groups_of(model, l2=0.1))

    train_step(model, optimizer, 0)

    absent = count_rows(model.embedding.rows(make_batch(0)[1]), sum(SIZES)) == 0
    assert absent.any()
    for name in ("embedding.weight", "first_order.weight"):
        after = model.state_dict()[name]
        assert (after[absent].abs() < before[name][absent].abs()).all()


# --- state --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("update", ["dense", "touched"])
@pytest.mark.parametrize("optimizer_type", OPTIMIZERS)
def test_a_run_restored_from_its_state_ends_bit_for_bit_the_same(
    optimizer_type: type[Adagrad | SGD], update: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    def make() -> tuple[CTRModel, Adagrad | SGD]:
        model = make_model(dtype)
        groups = [{**group, "clip": "none"} for group in groups_of(model, l2=0.01)]
        return model, optimizer_type(groups, update=update)

    straight, optimizer = make()
    for seed in range(3):
        train_step(straight, optimizer, seed)
    torch.save([straight.state_dict(), optimizer.state_dict()], tmp_path / "state.pt")
    for seed in range(3, 6):
        train_step(straight, optimizer, seed)

    resumed, resumed_optimizer = make()
    model_state, optimizer_state = torch.load(tmp_path / "state.pt", weights_only=True)
    resumed.load_state_dict(model_state)
    resumed_optimizer.load_state_dict(optimizer_state)
    for seed in range(3, 6):
        train_step(resumed, resumed_optimizer, seed)

    for name, value in straight.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name


@pytest.mark.parametrize("optimizer_type", OPTIMIZERS)
def test_a_deep_copy_of_model_and_optimizer_goes_on_alike(optimizer_type: type[Adagrad | SGD]) -> None:
    model = make_model()
    optimizer = optimizer_type(groups_of(model, l2=0.01))
    train_step(model, optimizer, 0)
    twin, twin_optimizer = copy.deepcopy((model, optimizer))

    train_step(model, optimizer, 1)
    train_step(twin, twin_optimizer, 1)

    for name, value in model.state_dict().items():
        assert torch.equal(twin.state_dict()[name], value), name


@pytest.mark.parametrize("optimizer_type", OPTIMIZERS)
def test_a_closure_is_run_and_its_loss_returned(optimizer_type: type[Adagrad | SGD]) -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = optimizer_type([weight])

    def closure() -> float:
        weight.grad = torch.ones_like(weight)
        return 4.5

    assert optimizer.step(closure) == 4.5
    assert (weight < 1.0).all()


@pytest.mark.parametrize(
    ("optimizer_type", "options", "message"),
    [
        (Adagrad, {"initial": -0.1}, "initial must be a number of 0 or more"),
        (Adagrad, {"eps": 0.0}, "eps must be a number above 0"),
        (Adagrad, {"lr": -1.0}, "lr must be"),
        (SGD, {"lr": -1.0}, "lr must be"),
        (SGD, {"l2": float("nan")}, "l2 must be"),
        (SGD, {"update": "some"}, "nothing|unknown update"),
        (SGD, {"clip": "column", "clip_norm": 1.0}, "SGD has nothing to clip"),
    ],
)
def test_a_value_without_meaning_is_a_config_error(
    optimizer_type: type[Adagrad | SGD], options: dict[str, Any], message: str
) -> None:
    kind = {} if "clip" in options else {"kind": "first_order"}
    with pytest.raises(ConfigError, match=message):
        optimizer_type([{"params": [nn.Parameter(torch.ones(2, 1))], **kind}], **options)
