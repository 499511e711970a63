import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stampede import ConfigError
from stampede.kernels import count_rows
from stampede.training.embedding import FusedEmbedding
from stampede.training.loss import cross_entropy
from stampede.training.models import CTRModel, build_model
from stampede.training.optim import CowClip

SIZES = (4, 7, 30)


def make_batch(rows: int, *, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = [(torch.rand(rows, generator=generator) ** 3 * size).long() for size in SIZES]
    dense = torch.rand(rows, 2, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 2, (rows,), generator=generator)
    return dense, torch.stack(ids, 1), labels


def make_model(dtype: torch.dtype = torch.float64) -> CTRModel:
    generator = torch.Generator().manual_seed(7)
    return build_model(
        "dcn", sizes=SIZES, n_dense=2, embedding_dim=3, hidden=[5], init_std=1e-3, generator=generator
    ).to(dtype)


def make_optimizer(
    model: CTRModel, *, clip: str = "cowclip", l2: float = 1e-2, ratio: float = 1.0
) -> CowClip:
    groups = model.parameter_groups(learning_rate=0.02, embedding_learning_rate=0.01, l2=l2, clip=clip)
    return CowClip(groups, clip=clip, ratio=ratio)


def train_step(model: CTRModel, optimizer: CowClip, batch: tuple[Tensor, Tensor, Tensor]) -> None:
    dense, ids, labels = batch
    optimizer.zero_grad()
    torch.autograd.backward(cross_entropy(model(dense.to(model.embedding.weight.dtype), ids), labels))
    optimizer.step()


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def one_table(**group: Any) -> tuple[nn.Parameter, CowClip]:
    table = nn.Parameter(torch.ones(3, 2, dtype=torch.float64))
    table.grad = torch.full_like(table, 100.0)
    return table, CowClip([{"params": [table], "kind": "embedding", **group}], lr=0.1)


# --- what a step does -----------------------------------------------------------------------------


def test_a_plain_torch_loop_lowers_the_loss() -> None:
    model = make_model()
    optimizer = make_optimizer(model, l2=0.0)
    dense, ids, labels = make_batch(64)
    before = cross_entropy(model(dense, ids), labels).item()

    for _ in range(50):
        train_step(model, optimizer, (dense, ids, labels))

    assert cross_entropy(model(dense, ids), labels).item() < 0.9 * before


def test_accumulated_micro_batches_are_the_whole_batch() -> None:
    dense, ids, labels = make_batch(60)
    whole, parts = make_model(), make_model()
    whole_optimizer, parts_optimizer = make_optimizer(whole, ratio=0.1), make_optimizer(parts, ratio=0.1)

    for _ in range(3):
        train_step(whole, whole_optimizer, (dense, ids, labels))
        parts_optimizer.zero_grad()
        for start in range(0, 60, 20):
            part = slice(start, start + 20)
            loss = cross_entropy(parts(dense[part], ids[part]), labels[part]) / 3
            torch.autograd.backward(loss)
        parts_optimizer.step()

    share = whole_optimizer.clipped_share()
    assert share is not None
    assert 0.1 < share < 0.9  # so that the test tells a wrong count
    assert parts_optimizer.clipped_share() == share
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(parts.state_dict()[name], value, rtol=1e-10, atol=1e-13)


def test_given_counts_go_before_recorded_ones() -> None:
    batch = make_batch(20)
    recorded, given = make_model(), make_model()
    train_step(recorded, make_optimizer(recorded), batch)
    optimizer = make_optimizer(given)
    torch.autograd.backward(cross_entropy(given(batch[0], batch[1]), batch[2]))

    counts = torch.full((sum(SIZES),), 10_000)
    optimizer.step(counts={given.embedding.weight: counts})

    assert optimizer.clipped_share() == 0.0
    assert not torch.equal(given.embedding.weight, recorded.embedding.weight)


def test_the_first_order_table_is_not_clipped_and_absent_rows_of_both_decay() -> None:
    model = make_model()
    with torch.no_grad():
        assert model.first_order is not None
        model.first_order.weight.fill_(0.5)
        model.embedding.weight.fill_(0.5)
    before = weights_of(model)
    dense, ids, labels = make_batch(8)
    absent = count_rows(model.embedding.rows(ids), sum(SIZES)) == 0

    train_step(model, make_optimizer(model, l2=0.1), (dense, ids, labels))

    for name in ("embedding.weight", "first_order.weight"):
        assert (model.state_dict()[name][absent] < before[name][absent]).all()


def test_step_leaves_the_gradient_as_it_was() -> None:
    table, optimizer = one_table(l2=0.1)

    optimizer.step(counts={table: torch.tensor([0, 1, 2])})

    assert table.grad is not None
    assert torch.equal(table.grad, torch.full_like(table, 100.0))


def test_a_sparse_gradient_is_the_dense_one() -> None:
    ids = torch.tensor([1, 1, 3, 0])
    ends = []
    for sparse in (True, False):
        torch.manual_seed(0)
        table = nn.Embedding(5, 2, sparse=sparse)
        optimizer = CowClip([{"params": table.parameters(), "kind": "embedding", "l2": 1e-3}], lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            torch.autograd.backward(table(ids).square().sum())
            optimizer.step(counts={table.weight: count_rows(ids, 5)})
        ends.append(table.weight.detach())

    torch.testing.assert_close(ends[0], ends[1])


def test_without_a_clip_it_is_adam_on_every_group() -> None:
    model = make_model()
    optimizer = make_optimizer(model, clip="none")

    train_step(model, optimizer, make_batch(10))

    assert optimizer.clipped_share() is None


def test_the_share_of_clipped_rows_is_of_the_last_step() -> None:
    table, optimizer = one_table()
    assert optimizer.clipped_share() is None

    optimizer.step(counts={table: torch.tensor([0, 1, 10_000])})  # a norm of 141 against sqrt(2) * count

    assert optimizer.clipped_share() == pytest.approx(2 / 3)


def test_a_closure_is_run_and_its_loss_returned() -> None:
    embedding = FusedEmbedding([4], 2)
    optimizer = CowClip([{"params": embedding.parameters(), "kind": "embedding"}])
    before = embedding.weight.detach().clone()

    def closure() -> float:
        optimizer.zero_grad()
        loss = embedding(torch.tensor([[1], [2]])).sum()
        torch.autograd.backward(loss)
        return 4.5

    assert optimizer.step(closure) == 4.5
    assert not torch.equal(embedding.weight, before)


def test_a_rate_changed_through_the_groups_is_respected() -> None:
    table, optimizer = one_table()
    optimizer.param_groups[0]["lr"] = 0.0

    optimizer.step(counts={table: torch.tensor([1, 1, 1])})

    assert torch.equal(table, torch.ones_like(table))


def test_torch_schedulers_work_on_it() -> None:
    table, optimizer = one_table()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)

    optimizer.step(counts={table: torch.tensor([1, 1, 1])})
    scheduler.step()

    assert optimizer.param_groups[0]["lr"] == 0.05


def test_a_parameter_without_a_gradient_is_skipped() -> None:
    model = make_model()
    before = weights_of(model)

    make_optimizer(model).step()

    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())


# --- state ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_run_restored_from_its_state_ends_bit_for_bit_the_same(dtype: torch.dtype, tmp_path: Any) -> None:
    batches = [make_batch(16, seed=seed) for seed in range(6)]
    straight = make_model(dtype)
    optimizer = make_optimizer(straight)
    for batch in batches[:3]:
        train_step(straight, optimizer, batch)
    torch.save([straight.state_dict(), optimizer.state_dict()], tmp_path / "state.pt")
    for batch in batches[3:]:
        train_step(straight, optimizer, batch)

    resumed = make_model(dtype)
    resumed_optimizer = make_optimizer(resumed)
    model_state, optimizer_state = torch.load(tmp_path / "state.pt", weights_only=True)
    resumed.load_state_dict(model_state)
    resumed_optimizer.load_state_dict(optimizer_state)
    for batch in batches[3:]:
        train_step(resumed, resumed_optimizer, batch)

    for name, value in straight.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name


def test_a_deep_copy_of_model_and_optimizer_goes_on_alike() -> None:
    model = make_model()
    optimizer = make_optimizer(model)
    train_step(model, optimizer, make_batch(16))
    twin, twin_optimizer = copy.deepcopy((model, optimizer))

    train_step(model, optimizer, make_batch(16, seed=1))
    train_step(twin, twin_optimizer, make_batch(16, seed=1))

    assert torch.equal(twin.embedding.weight, model.embedding.weight)


# --- errors ---------------------------------------------------------------------------------------


def test_unknown_counts_are_a_config_error_that_says_what_to_do_and_change_nothing() -> None:
    table, optimizer = one_table()

    with pytest.raises(ConfigError, match=r"table 0 \[3, 2\].*FusedEmbedding.*step\(counts=.*'none'"):
        optimizer.step()

    assert torch.equal(table, torch.ones_like(table))


@pytest.mark.parametrize("counts", [torch.ones(4, dtype=torch.int64), torch.ones(3), torch.ones(3, 1).int()])
def test_counts_that_do_not_fit_are_a_config_error(counts: Tensor) -> None:
    table, optimizer = one_table()

    with pytest.raises(ConfigError, match="must be 3 integers"):
        optimizer.step(counts={table: counts})


def test_counts_of_a_stranger_are_a_config_error() -> None:
    table, optimizer = one_table()
    counts = torch.tensor([1, 1, 1])

    with pytest.raises(ConfigError, match="none of this optimizer's tables"):
        optimizer.step(counts={table: counts, nn.Parameter(torch.ones(3, 2)): counts})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lr": -0.1}, "lr must be a number of 0 or more"),
        ({"lr": math.nan}, "lr must be"),
        ({"l2": -1.0}, "l2 must be"),
        ({"zeta": math.inf}, "zeta must be"),
        ({"ratio": 0.0}, "ratio must be a number above 0"),
        ({"eps": 0.0}, "eps must be"),
        ({"betas": (0.9, 1.0)}, "betas must be two numbers"),
        ({"betas": (0.9,)}, "betas must be two numbers"),
        ({"kind": "table"}, "unknown kind 'table': choose one of embedding, first_order, dense"),
        (
            {"clip": "row"},
            "unknown clip 'row': choose one of none, global, field, column, adaptive-field, cow",
        ),
        ({"clip": "global"}, "clip 'global' needs a clip_norm"),
        ({"clip": "field", "clip_norm": 0.0}, "clip_norm must be a number above 0"),
        ({"update": "some"}, "unknown update 'some': choose one of dense, touched"),
        ({"sizes": (1, 1)}, "sizes of 2 rows do not fit a table of 3"),
        ({"kind": "dense", "clip": "cowclip"}, "only groups of kind 'embedding' are clipped"),
        ({"kind": "first_order", "clip": "cowclip"}, "only groups of kind 'embedding' are clipped"),
    ],
)
def test_a_value_without_meaning_is_a_config_error(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        one_table(**values)


def test_a_table_must_be_a_matrix() -> None:
    with pytest.raises(ConfigError, match=r"tables \[rows, d\] only"):
        CowClip([{"params": [nn.Parameter(torch.ones(3))], "kind": "embedding"}])


def test_nothing_to_clip_is_a_config_error_unless_asked_for() -> None:
    parameters = [nn.Parameter(torch.ones(3, 2))]

    with pytest.raises(ConfigError, match="nothing to clip"):
        CowClip(parameters)
    CowClip(parameters, clip="none")
