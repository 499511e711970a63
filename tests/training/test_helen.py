"""What Helen does besides the numbers of its reference (tests/golden/test_helen.py)."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stampede import ConfigError
from stampede.kernels import count_rows
from stampede.training.embedding import FusedEmbedding
from stampede.training.loss import cross_entropy
from stampede.training.models import CTRModel, build_model
from stampede.training.optim import Helen

SIZES = (4, 7, 30)


def make_model(dtype: torch.dtype = torch.float64) -> CTRModel:
    generator = torch.Generator().manual_seed(7)
    return build_model(
        "deepfm", sizes=SIZES, n_dense=2, embedding_dim=3, hidden=[5], init_std=0.1, generator=generator
    ).to(dtype)


def make_optimizer(model: CTRModel, **options: Any) -> Helen:
    return Helen(model.parameter_groups(learning_rate=0.02, embedding_learning_rate=0.01, l2=1e-2), **options)


def make_closure(model: CTRModel, optimizer: torch.optim.Optimizer, *, seed: int = 0) -> Callable[[], Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.stack([(torch.rand(20, generator=generator) ** 3 * size).long() for size in SIZES], 1)
    dense = torch.rand(20, 2, generator=generator).to(model.embedding.weight.dtype)
    labels = torch.randint(0, 2, (20,), generator=generator)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(model(dense, ids), labels)
        torch.autograd.backward(loss)
        return loss.detach()

    return closure


def train(model: CTRModel, optimizer: Helen, seeds: range) -> None:
    for seed in seeds:
        optimizer.step(make_closure(model, optimizer, seed=seed))


def one_table(**options: Any) -> tuple[nn.Parameter, Helen]:
    table = nn.Parameter(torch.ones(3, 2, dtype=torch.float64))
    return table, Helen([{"params": [table], "kind": "embedding"}], lr=0.1, **options)


# --- a step -------------------------------------------------------------------------------------


@pytest.mark.parametrize("perturb", ["tables", "all"])
def test_without_a_way_to_go_it_is_torchs_adam(perturb: str) -> None:
    model, plain = make_model(), make_model()
    optimizer = make_optimizer(model, rho=0.0, perturb=perturb)
    groups = plain.parameter_groups(learning_rate=0.02, embedding_learning_rate=0.01, l2=1e-2)
    adam = torch.optim.Adam(
        [{"params": g["params"], "lr": g["lr"], "weight_decay": 2 * g["l2"]} for g in groups], eps=1e-8
    )

    for seed in range(4):
        loss = optimizer.step(make_closure(model, optimizer, seed=seed))
        plain_loss = make_closure(plain, adam, seed=seed)()
        adam.step()
        assert float(loss) == pytest.approx(float(plain_loss), rel=1e-12)

    weights = model.state_dict()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(weights[name], value, rtol=1e-11, atol=1e-13)


def test_each_field_moves_by_its_own_norm_and_each_id_by_its_share_of_the_fields_highest_count() -> None:
    """Two fields of 2 rows; counts 4, 1 and 0, 2; the gradient of every value is its number."""
    table = nn.Parameter(torch.zeros(4, 1, dtype=torch.float64))
    numbers = torch.tensor([[3.0], [4.0], [0.0], [2.0]], dtype=torch.float64)
    optimizer = Helen([{"params": [table], "kind": "embedding", "sizes": (2, 2)}], lr=0.1, rho=0.5, bound=0.4)
    seen = []

    def closure() -> None:
        seen.append(table.detach().clone())
        table.grad = numbers.clone()

    optimizer.step(closure, counts={table: torch.tensor([4, 1, 0, 2])})

    # 0.5 * 3/5 * 1, 0.5 * 4/5 * 0.4 (1/4 is less than the bound); 0, 0.5 * 2/2 * 1
    assert not seen[0].any()
    torch.testing.assert_close(seen[1].flatten(), torch.tensor([0.3, 0.16, 0.0, 0.5], dtype=torch.float64))
    torch.testing.assert_close(table.detach().sign(), -numbers.sign())


def test_a_batch_that_has_no_row_of_a_field_moves_it_by_the_bound() -> None:
    table, optimizer = one_table(rho=1.0, bound=0.25)
    seen = []

    def closure() -> None:
        seen.append(table.detach().clone())
        table.grad = torch.tensor([[1.0, 0.0]] * 3, dtype=torch.float64)

    optimizer.step(closure, counts={table: torch.zeros(3, dtype=torch.int64)})

    assert seen[1][0].tolist() == pytest.approx([1 + 0.25 / 3**0.5, 1.0])


def test_dense_and_first_order_weights_move_only_where_all_do() -> None:
    moved: dict[str, list[str]] = {}
    for perturb in ("tables", "all"):
        model = make_model()
        optimizer = make_optimizer(model, perturb=perturb, rho=0.1)
        closure = make_closure(model, optimizer)
        seen: list[dict[str, Tensor]] = []

        def watched(
            closure: Callable[[], Tensor] = closure,
            model: CTRModel = model,
            seen: list[dict[str, Tensor]] = seen,
        ) -> Tensor:
            seen.append({name: value.detach().clone() for name, value in model.named_parameters()})
            return closure()

        optimizer.step(watched)
        assert len(seen) == 2
        moved[perturb] = [name for name, value in seen[0].items() if not torch.equal(value, seen[1][name])]

    assert moved["tables"] == ["embedding.weight"]
    assert set(moved["all"]) == {name for name, _ in make_model().named_parameters()}


def test_the_loss_of_the_first_pass_is_returned() -> None:
    table, optimizer = one_table()
    losses = iter([3.5, 9.0])

    def closure() -> float:
        table.grad = torch.ones_like(table)
        return next(losses)

    assert optimizer.step(closure, counts={table: torch.tensor([1, 2, 0])}) == 3.5


def test_it_clips_nothing() -> None:
    model = make_model()
    optimizer = make_optimizer(model)

    train(model, optimizer, range(1))

    assert optimizer.clipped_share() is None


def test_a_table_of_its_own_needs_counts_and_sparse_gradients_are_the_dense_ones() -> None:
    ids = torch.tensor([1, 1, 3, 0])
    ends = []
    for sparse in (True, False):
        torch.manual_seed(0)
        table = nn.Embedding(5, 2, sparse=sparse, dtype=torch.float64)
        optimizer = Helen([{"params": table.parameters(), "kind": "embedding", "l2": 1e-3}], lr=0.1)

        def closure(table: nn.Embedding = table, optimizer: Helen = optimizer) -> None:
            optimizer.zero_grad()
            torch.autograd.backward(table(ids).square().sum())

        for _ in range(3):
            optimizer.step(closure, counts={table.weight: count_rows(ids, 5)})
        ends.append(table.weight.detach())

    torch.testing.assert_close(ends[0], ends[1])


# --- errors -------------------------------------------------------------------------------------


def test_a_step_without_a_closure_is_a_config_error_and_changes_nothing() -> None:
    model = make_model()
    optimizer = make_optimizer(model)
    make_closure(model, optimizer)()
    before = copy.deepcopy(model.state_dict())

    with pytest.raises(ConfigError, match=r"two passes a step: call step\(closure\)"):
        optimizer.step()

    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_unknown_counts_are_a_config_error_and_change_nothing() -> None:
    table, optimizer = one_table()

    def closure() -> None:
        table.grad = torch.ones_like(table)

    with pytest.raises(ConfigError, match=r"counts of embedding table 0 \[3, 2\] are not known"):
        optimizer.step(closure)

    assert torch.equal(table, torch.ones_like(table))


@pytest.mark.parametrize("perturb", ["tables", "all"])
def test_an_error_in_the_second_pass_leaves_the_weights_where_they_were(perturb: str) -> None:
    model = make_model()
    optimizer = make_optimizer(model, perturb=perturb)
    closure = make_closure(model, optimizer)
    before = copy.deepcopy(model.state_dict())
    passes = iter([False, True])

    def failing() -> Tensor:
        if next(passes):
            raise KeyboardInterrupt
        return closure()

    with pytest.raises(KeyboardInterrupt):
        optimizer.step(failing)

    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"perturb": "some"}, "unknown perturb 'some': choose one of tables, all"),
        ({"rho": -1.0}, "rho must be a number of 0 or more"),
        ({"bound": 1.5}, r"bound must be a number in \[0, 1\]"),
        ({"bound": -0.5}, r"bound must be a number in \[0, 1\]"),
        ({"eps": 0.0}, "eps must be a number above 0"),
        ({"betas": (1.0, 0.9)}, "betas must be two numbers"),
        ({"l2": -1.0}, "l2 must be"),
    ],
)
def test_a_value_without_meaning_is_a_config_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        one_table(**options)


def test_rows_of_the_batch_alone_are_not_to_be_had() -> None:
    with pytest.raises(ConfigError, match="update must be dense"):
        Helen([{"params": [nn.Parameter(torch.ones(3, 2))], "kind": "embedding", "update": "touched"}])


# --- state --------------------------------------------------------------------------------------


@pytest.mark.parametrize("perturb", ["tables", "all"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_run_restored_from_its_state_ends_bit_for_bit_the_same(
    dtype: torch.dtype, perturb: str, tmp_path: Path
) -> None:
    straight = make_model(dtype)
    optimizer = make_optimizer(straight, perturb=perturb)
    train(straight, optimizer, range(3))
    torch.save([straight.state_dict(), optimizer.state_dict()], tmp_path / "state.pt")
    train(straight, optimizer, range(3, 6))

    resumed = make_model(dtype)
    resumed_optimizer = make_optimizer(resumed, perturb=perturb)
    model_state, optimizer_state = torch.load(tmp_path / "state.pt", weights_only=True)
    resumed.load_state_dict(model_state)
    resumed_optimizer.load_state_dict(optimizer_state)
    train(resumed, resumed_optimizer, range(3, 6))

    for name, value in straight.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name


@pytest.mark.parametrize("perturb", ["tables", "all"])
@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_a_copy_of_model_and_optimizer_goes_on_alike(way: str, perturb: str) -> None:
    model = make_model()
    optimizer = make_optimizer(model, perturb=perturb)
    train(model, optimizer, range(2))
    pair = (model, optimizer)
    twin, twin_optimizer = copy.deepcopy(pair) if way == "deepcopy" else pickle.loads(pickle.dumps(pair))

    train(model, optimizer, range(2, 4))
    train(twin, twin_optimizer, range(2, 4))

    for name, value in model.state_dict().items():
        assert torch.equal(twin.state_dict()[name], value), name


def test_the_counts_of_a_fused_table_are_those_of_the_first_pass() -> None:
    """A closure may look up other rows in the second one; where to go was decided before."""
    embedding = FusedEmbedding([3], 1, dtype=torch.float64, init_std=0.0)
    optimizer = Helen([{"params": embedding.parameters(), "kind": "embedding"}], lr=0.1, rho=1.0, bound=0.0)
    batches = iter([torch.tensor([[0], [0], [1]]), torch.tensor([[2]])])
    seen = []

    def closure() -> None:
        seen.append(embedding.weight.detach().flatten().tolist())
        optimizer.zero_grad()
        torch.autograd.backward(embedding(next(batches)).sum())

    optimizer.step(closure)

    norm = 5**0.5  # of the gradients 2, 1, 0
    assert seen[1] == pytest.approx([2 / norm, 0.5 / norm, 0.0])
