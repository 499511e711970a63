"""A training step is that of a plain torch loop over the model, its loss and its optimizer."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stampede.training import step as step_module
from stampede.training.batch import Batch
from stampede.training.embedding import FusedEmbedding
from stampede.training.loss import cross_entropy, regulariser
from stampede.training.models import MODELS, CTRModel, build_model
from stampede.training.optim import SGD, Adagrad, CowClip, Helen, LinearWarmup, TableOptimizer
from stampede.training.step import TrainStep

SIZES = (4, 7, 60)
GOLDEN = Path(__file__).parents[1] / "golden"


def make_model(
    name: str = "deepfm", *, n_dense: int = 2, init_std: float = 1e-2, dtype: torch.dtype = torch.float64
) -> CTRModel:
    return build_model(
        name,
        sizes=SIZES,
        n_dense=n_dense,
        embedding_dim=4,
        hidden=[6, 5],
        low_rank=2,
        experts=2,
        bottom_hidden=[3],
        cin_layers=[3, 2],
        attention_layers=2,
        attention_heads=2,
        attention_dim=3,
        init_std=init_std,
        generator=torch.Generator().manual_seed(7),
    ).to(dtype)


def make_optimizer(model: CTRModel, **options: Any) -> CowClip:
    groups = model.parameter_groups(learning_rate=0.02, embedding_learning_rate=0.01, l2=1e-3)
    return CowClip(groups, **{"ratio": 0.1, "zeta": 1e-3, **options})


def make_batch(rows: int, *, seed: int = 0, n_dense: int = 2, dtype: torch.dtype = torch.float64) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    ids = [(torch.rand(rows, generator=generator) ** 3 * size).int() for size in SIZES]
    return Batch(
        torch.rand(rows, n_dense, generator=generator, dtype=dtype),
        torch.stack(ids, 1),
        torch.randint(0, 2, (rows,), generator=generator, dtype=torch.int8),
    )


def plain_step(model: CTRModel, optimizer: TableOptimizer, batch: Batch) -> float:
    """Step as a user of torch would."""

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(model(batch.dense, batch.ids), batch.labels)
        torch.autograd.backward(loss)
        return loss.detach()

    return float(optimizer.step(closure))


def assert_alike(found: CTRModel, expected: CTRModel, *, rtol: float = 1e-10, atol: float = 1e-12) -> None:
    weights = found.state_dict()
    for name, value in expected.state_dict().items():
        off = (weights[name] - value).abs() > atol + rtol * value.abs()
        assert not off.any(), (name, weights[name][off], value[off])


# --- against a plain loop -----------------------------------------------------------------------


@pytest.mark.parametrize("n_dense", [0, 2])
@pytest.mark.parametrize("name", list(MODELS))
def test_three_steps_of_every_model_are_those_of_a_plain_torch_loop(name: str, n_dense: int) -> None:
    model, plain = (make_model(name, n_dense=n_dense, init_std=0.1) for _ in range(2))
    start = copy.deepcopy(plain.state_dict())
    optimizer, plain_optimizer = make_optimizer(model, ratio=0.003), make_optimizer(plain, ratio=0.003)
    take_step = TrainStep(model, optimizer, batch_size=50)

    for seed in range(3):
        batch = make_batch(50, seed=seed, n_dense=n_dense)
        loss = take_step(batch)

        assert float(loss) == pytest.approx(plain_step(plain, plain_optimizer, batch), rel=1e-12)
        assert optimizer.clipped_share() == plain_optimizer.clipped_share()

    share = optimizer.clipped_share()
    assert share is not None
    assert 0 < share < 1
    assert all(not torch.equal(value, start[key]) for key, value in model.state_dict().items())
    assert_alike(model, plain)


OPTIMIZERS: dict[str, Any] = {
    "cowclip": lambda groups: CowClip(groups, ratio=0.1),
    "cowclip touched": lambda groups: CowClip(groups, ratio=0.1, update="touched"),
    "adam": lambda groups: CowClip(groups, clip="none"),
    "adam, field": lambda groups: CowClip(groups, clip="field", clip_norm=1e-3),
    "adam, column, touched": lambda groups: CowClip(groups, clip="column", clip_norm=1e-3, update="touched"),
    "adagrad": lambda groups: Adagrad(groups, clip="cowclip", ratio=0.1),
    "sgd touched": lambda groups: SGD(groups, clip="global", clip_norm=1e-3, update="touched"),
    "helen": lambda groups: Helen(groups),
    "helen, all": lambda groups: Helen(groups, perturb="all"),
}


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_the_step_of_every_optimizer_is_that_of_a_plain_torch_loop(optimizer: str) -> None:
    model, plain = make_model(), make_model()
    with torch.no_grad():  # so that the regulariser acts
        for one in (model, plain):
            assert one.first_order is not None
            one.first_order.weight.fill_(0.1)
    ours, theirs = (
        OPTIMIZERS[optimizer](m.parameter_groups(learning_rate=0.02, embedding_learning_rate=0.01, l2=1e-3))
        for m in (model, plain)
    )
    take_step = TrainStep(model, ours, batch_size=50)

    for seed in range(3):
        batch = make_batch(50, seed=seed)
        loss = take_step(batch)

        assert float(loss) == pytest.approx(plain_step(plain, theirs, batch), rel=1e-12)
        assert ours.clipped_share() == theirs.clipped_share()

    assert_alike(model, plain)


def test_float32_is_the_plain_loop_within_its_rounding() -> None:
    model, plain = make_model(dtype=torch.float32), make_model(dtype=torch.float32)
    take_step = TrainStep(model, make_optimizer(model), batch_size=200)
    plain_optimizer = make_optimizer(plain)

    for seed in range(3):
        batch = make_batch(200, seed=seed, dtype=torch.float32)
        loss = take_step(batch)
        assert float(loss) == pytest.approx(plain_step(plain, plain_optimizer, batch), rel=1e-6)

    assert_alike(model, plain, rtol=1e-3, atol=1e-5)


def test_bfloat16_products_are_near_float32_and_weights_and_losses_stay_float32() -> None:
    # rates at which rounding does not turn the steps of rows whose gradients are next to 0
    models = [make_model(dtype=torch.float32) for _ in range(2)]
    losses: list[list[float]] = []
    for model, precision in zip(models, ("float32", "bf16"), strict=True):
        take_step = TrainStep(model, make_optimizer(model), batch_size=500, precision=precision)  # type: ignore[arg-type]
        losses.append([])
        for seed in range(20):
            loss = take_step(make_batch(500, seed=seed, dtype=torch.float32))
            assert loss.dtype == torch.float32
            losses[-1].append(float(loss))

    assert losses[1] != losses[0]
    assert losses[1] == pytest.approx(losses[0], abs=2e-3)
    assert {parameter.dtype for parameter in models[1].parameters()} == {torch.float32}


# --- pieces -------------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulate", [2, 3, 7, 50, 1000])
def test_any_number_of_pieces_gives_the_step_of_the_whole_batch(accumulate: int) -> None:
    whole, pieces = make_model(), make_model()
    whole_optimizer, pieces_optimizer = make_optimizer(whole), make_optimizer(pieces)
    take_whole = TrainStep(whole, whole_optimizer, batch_size=50)
    take_pieces = TrainStep(pieces, pieces_optimizer, batch_size=50, accumulate=accumulate)

    for seed in range(3):
        batch = make_batch(50, seed=seed)
        assert float(take_pieces(batch)) == pytest.approx(float(take_whole(batch)), rel=1e-12)
        assert pieces_optimizer.clipped_share() == whole_optimizer.clipped_share()

    assert_alike(pieces, whole)


def test_a_batch_beyond_the_rows_of_a_piece_is_cut_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, pieces = make_model(), make_model()
    take_whole = TrainStep(whole, make_optimizer(whole), batch_size=50)
    monkeypatch.setattr(step_module, "CPU_PIECE_ROWS", 16)
    take_pieces = TrainStep(pieces, make_optimizer(pieces), batch_size=50)
    seen: list[int] = []
    pieces.network.register_forward_hook(lambda network, inputs, output: seen.append(len(output)))

    batch = make_batch(50)
    assert float(take_pieces(batch)) == pytest.approx(float(take_whole(batch)), rel=1e-12)

    assert seen == [13, 13, 13, 11]
    assert_alike(pieces, whole)


@pytest.mark.parametrize("accumulate", [1, 4])
def test_the_last_batch_of_an_epoch_may_be_smaller_down_to_one_row(accumulate: int) -> None:
    model, plain = make_model(), make_model()
    plain_optimizer = make_optimizer(plain)
    take_step = TrainStep(model, make_optimizer(model), batch_size=50, accumulate=accumulate)

    for seed, rows in enumerate((50, 17, 1, 50)):
        batch = make_batch(rows, seed=seed)
        assert float(take_step(batch)) == pytest.approx(plain_step(plain, plain_optimizer, batch), rel=1e-12)

    assert_alike(model, plain)


def test_more_rows_than_a_batch_was_announced_to_have_are_a_value_error() -> None:
    model = make_model()
    take_step = TrainStep(model, make_optimizer(model), batch_size=50)

    with pytest.raises(ValueError, match="where 50 were announced"):
        take_step(make_batch(51))


def test_an_id_that_its_field_does_not_have_is_an_index_error_and_changes_no_weight() -> None:
    model = make_model()
    before = copy.deepcopy(model.state_dict())
    take_step = TrainStep(model, make_optimizer(model), batch_size=50)
    batch = make_batch(50)
    batch.ids[7, 1] = 7

    with pytest.raises(IndexError, match="id 7 of field 1, row 7"):
        take_step(batch)

    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


# --- repeatable ---------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_the_same_seed_gives_the_same_bits(precision: Any) -> None:
    ends = []
    for _ in range(2):
        model = make_model(dtype=torch.float32)
        take_step = TrainStep(model, make_optimizer(model), batch_size=300, precision=precision)
        losses = [float(take_step(make_batch(300, seed=s, dtype=torch.float32))) for s in range(5)]
        ends.append((losses, model.state_dict()))

    assert ends[0][0] == ends[1][0]
    assert all(torch.equal(value, ends[1][1][name]) for name, value in ends[0][1].items())


def test_a_step_leaves_no_gradient_of_a_whole_table_behind() -> None:
    model = make_model()
    TrainStep(model, make_optimizer(model), batch_size=50)(make_batch(50))

    assert model.embedding.weight.grad is None
    assert model.first_order is not None
    assert model.first_order.weight.grad is None


def test_a_step_may_be_taken_where_gradients_are_off() -> None:
    model, other = make_model(), make_model()
    batch = make_batch(50)
    TrainStep(model, make_optimizer(model), batch_size=50)(batch)

    with torch.no_grad():
        TrainStep(other, make_optimizer(other), batch_size=50)(batch)

    assert_alike(other, model, rtol=0.0, atol=0.0)


def test_preparing_and_computing_apart_is_the_step() -> None:
    """As a captured graph does: the rate is found outside of it."""
    model, other = make_model(), make_model()
    take_step = TrainStep(model, make_optimizer(model), batch_size=50)
    other_step = TrainStep(other, make_optimizer(other), batch_size=50)
    take_step(make_batch(50)), other_step(make_batch(50))

    loss = take_step(make_batch(50, seed=1))
    other_step.prepare()
    other_loss = other_step.compute(make_batch(50, seed=1))

    assert torch.equal(loss, other_loss)
    assert_alike(other, model, rtol=0.0, atol=0.0)


# --- the reference program ----------------------------------------------------------------------

FIELDS = ("C1", "C2", "C3")
WEIGHTS = {
    "W1": "network.mlp.layers.0.weight",
    "b1": "network.mlp.layers.0.bias",
    "W2": "network.output.weight",
    "b2": "network.output.bias",
    "emb": "embedding.weight",
    "lin": "first_order.weight",
}


class Golden:
    def __init__(self, name: str, dtype: torch.dtype) -> None:
        self.facts = json.loads((GOLDEN / f"{name}.json").read_text())
        self.hyper = self.facts["hyper"]
        with np.load(GOLDEN / f"{name}.npz") as arrays:
            self.arrays = dict(arrays)
        self.dtype = dtype

    def tensor(self, name: str) -> Tensor:
        return torch.from_numpy(self.arrays[name])

    def weight(self, stem: str, name: str, suffix: str = "") -> Tensor:
        if name in ("emb", "lin"):
            return torch.cat([self.tensor(f"{stem}{name}_{field}{suffix}") for field in FIELDS]).to(
                self.dtype
            )
        return self.tensor(f"{stem}{name}{suffix}").t().to(self.dtype)

    def tolerance(self, prefix: str, what: str) -> dict[str, float]:
        of_precision = self.facts["tolerance"][prefix]
        found: dict[str, float] = of_precision.get("all") or of_precision[what]
        return found


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize(("prefix", "dtype"), [("f64logits", torch.float64), ("f32", torch.float32)])
@pytest.mark.parametrize("name", ["traj_i_seed101", "traj_iii_seed101"])
def test_thirty_steps_are_the_references(name: str, prefix: str, dtype: torch.dtype, accumulate: int) -> None:
    golden = Golden(name, dtype)
    hyper = golden.hyper
    sizes = [hyper["vocab"][field] for field in FIELDS]
    model = build_model("wide-deep", sizes=sizes, n_dense=0, embedding_dim=hyper["dim"], hidden=[8]).to(dtype)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for weight, path in WEIGHTS.items():
            parameters[path].copy_(golden.weight("init_", weight))
    groups = model.parameter_groups(
        learning_rate=hyper["lr_dense"], embedding_learning_rate=hyper["lr_emb"], l2=hyper["l2"]
    )
    clip: dict[str, Any] = {"ratio": hyper["r"], "zeta": hyper["zeta"]} if hyper["clip"] else {"clip": "none"}
    optimizer = CowClip(groups, betas=(hyper["beta1"], hyper["beta2"]), eps=hyper["eps"], **clip)
    schedule = LinearWarmup(optimizer, warmup_steps=hyper["warmup_steps"])
    take_step = TrainStep(model, optimizer, batch_size=hyper["batch"], accumulate=accumulate)
    compared = 0

    for k in range(hyper["steps"]):
        ids, labels = golden.tensor("ids")[k].int(), golden.tensor("labels")[k].to(torch.int8)
        penalty = float(regulariser(optimizer.param_groups))
        loss = float(take_step(Batch(torch.zeros(len(ids), 0, dtype=dtype), ids, labels))) + penalty
        schedule.step()

        assert loss == pytest.approx(float(golden.tensor(f"{prefix}_loss")[k]), abs=1e-5, rel=1e-5)
        if k + 1 not in hyper["saved_steps"]:
            continue
        for weight, path in WEIGHTS.items():
            state = optimizer.state[parameters[path]]
            for what, suffix, value in (
                ("weights", "", parameters[path].detach()),
                ("m", "_m", state["exp_avg"]),
                ("v", "_v", state["exp_avg_sq"]),
            ):
                expected = golden.weight(f"{prefix}_step{k + 1:02d}_", weight, suffix)
                torch.testing.assert_close(value, expected, **golden.tolerance(prefix, what))  # type: ignore[arg-type]
                compared += 1

    assert compared == 5 * len(WEIGHTS) * 3


def test_the_golden_model_is_of_one_table_with_its_fields_below_each_other() -> None:
    """What the comparison above rests on."""
    embedding = FusedEmbedding([7, 13, 40], 4)

    assert embedding.rows(torch.tensor([[6, 0, 39]])).tolist() == [[6, 7, 59]]
