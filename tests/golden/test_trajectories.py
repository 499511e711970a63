"""Thirty training steps give the numbers of the reference program.

The golden model is Wide & Deep: ``relu(x W1 + b1) W2 + b2`` over the embeddings side by side, plus the
first-order weights. Its three tables of a kind lie one below the other in a FusedEmbedding.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stampede.kernels import add_l2, clip_rows, count_rows
from stampede.training.embedding import batch_counts
from stampede.training.loss import cross_entropy, regulariser
from stampede.training.models import CTRModel, build_model
from stampede.training.optim import CowClip, LinearWarmup

FIELDS = ("C1", "C2", "C3")
NAMES = {"W1": "mlp.layers.0.weight", "b1": "mlp.layers.0.bias", "W2": "output.weight", "b2": "output.bias"}
PRECISIONS = [
    pytest.param("f64logits", torch.float64, id="float64"),
    pytest.param("f32", torch.float32, id="float32"),
]
TRAJECTORIES = ["traj_i_seed101", "traj_iii_seed101"]


@dataclass(frozen=True)
class Step:
    number: int  # from 1
    loss: float
    lr_dense: float
    before: dict[str, Tensor]  # gradients of the tables, L2 included
    after: dict[str, Tensor]  # the same, clipped


def table(golden: Any, prefix: str, kind: str, suffix: str, dtype: torch.dtype) -> Tensor:
    return torch.cat([golden.tensor(f"{prefix}{kind}_{field}{suffix}", dtype=dtype) for field in FIELDS])


def golden_weight(golden: Any, prefix: str, name: str, suffix: str, dtype: torch.dtype) -> Tensor:
    if name in NAMES:
        stored: Tensor = golden.tensor(f"{prefix}{name}{suffix}", dtype=dtype)  # (in, out)
        return stored.t()
    return table(golden, prefix, name, suffix, dtype)


def parameters_of(model: CTRModel) -> dict[str, nn.Parameter]:
    own = dict(model.network.named_parameters())
    assert model.first_order is not None
    return {
        "emb": model.embedding.weight,
        "lin": model.first_order.weight,
        **{name: own[path] for name, path in NAMES.items()},
    }


def make_model(golden: Any, dtype: torch.dtype) -> CTRModel:
    hyper = golden.facts["hyper"]
    sizes = [hyper["vocab"][field] for field in FIELDS]
    model = build_model("wide-deep", sizes=sizes, n_dense=0, embedding_dim=hyper["dim"], hidden=[8]).to(dtype)
    with torch.no_grad():
        for name, parameter in parameters_of(model).items():
            parameter.copy_(golden_weight(golden, "init_", name, "", dtype))
    return model


def make_optimizer(golden: Any, model: CTRModel) -> CowClip:
    hyper = golden.facts["hyper"]
    clip = "cowclip" if hyper["clip"] else "none"
    groups = model.parameter_groups(
        learning_rate=hyper["lr_dense"],
        embedding_learning_rate=hyper["lr_emb"],
        l2=hyper["l2"],
        clip=clip,
    )
    values = {"ratio": hyper["r"], "zeta": hyper["zeta"]} if hyper["clip"] else {}
    return CowClip(groups, clip=clip, betas=(hyper["beta1"], hyper["beta2"]), eps=hyper["eps"], **values)


def train(golden: Any, model: CTRModel, optimizer: CowClip, dtype: torch.dtype) -> Iterator[Step]:
    hyper = golden.facts["hyper"]
    schedule = LinearWarmup(optimizer, warmup_steps=hyper["warmup_steps"])
    ids, labels = golden.tensor("ids"), golden.tensor("labels")
    for k in range(hyper["steps"]):
        optimizer.zero_grad()
        batch = ids[k]
        entropy = cross_entropy(model(torch.zeros(len(batch), 0, dtype=dtype), batch), labels[k])
        torch.autograd.backward(entropy)
        loss = entropy.item() + regulariser(optimizer.param_groups).item()
        lr_dense = next(group["lr"] for group in optimizer.param_groups if group["kind"] == "dense")
        before, after = {}, {}
        assert model.first_order is not None
        for name, weight in (("emb", model.embedding.weight), ("lin", model.first_order.weight)):
            assert weight.grad is not None
            before[name] = after[name] = add_l2(weight.grad, weight.detach(), l2=hyper["l2"])
        if hyper["clip"]:
            counts = batch_counts(model.embedding.weight)
            assert counts is not None
            after["emb"], _ = clip_rows(
                before["emb"],
                model.embedding.weight.detach(),
                counts=counts,
                ratio=hyper["r"],
                zeta=hyper["zeta"],
            )
        optimizer.step()
        yield Step(k + 1, loss, lr_dense, before, after)
        schedule.step()


def tolerance(golden: Any, prefix: str, what: str) -> dict[str, Any]:
    of_precision: dict[str, dict[str, Any]] = golden.facts["tolerance"][prefix]
    return of_precision.get("all") or of_precision[what]


@pytest.mark.parametrize(("prefix", "dtype"), PRECISIONS)
@pytest.mark.parametrize("name", TRAJECTORIES)
def test_thirty_steps_are_the_references(
    name: str, prefix: str, dtype: torch.dtype, load_golden: Any
) -> None:
    golden = load_golden(name)
    hyper = golden.facts["hyper"]
    model = make_model(golden, dtype)
    optimizer = make_optimizer(golden, model)
    compared = 0

    def compare(actual: Tensor | float, expected: Tensor, what: str, label: str) -> None:
        nonlocal compared
        actual = torch.as_tensor(actual, dtype=torch.float64)
        torch.testing.assert_close(
            actual.detach(),
            expected.to(torch.float64),
            **tolerance(golden, prefix, what),
            msg=lambda message: f"{label}: {message}",
        )
        compared += 1

    for step in train(golden, model, optimizer, dtype):
        k = step.number - 1
        compare(step.loss, golden.tensor(f"{prefix}_loss")[k], "loss", f"loss of step {step.number}")
        compare(step.lr_dense, golden.tensor(f"{prefix}_lr_dense")[k], "lr_dense", f"rate {step.number}")
        if step.number not in hyper["saved_steps"]:
            continue
        stem = f"{prefix}_step{step.number:02d}_"
        for weight_name, parameter in parameters_of(model).items():
            state = optimizer.state[parameter]
            for what, suffix, actual in (
                ("weights", "", parameter),
                ("m", "_m", state["exp_avg"]),
                ("v", "_v", state["exp_avg_sq"]),
            ):
                expected = golden_weight(golden, stem, weight_name, suffix, dtype)
                compare(actual, expected, what, stem + weight_name + suffix)
        if hyper["clip"]:
            for suffix, gradient in (("_grad", step.before), ("_gradclipped", step.after)):
                expected = table(golden, stem, "emb", suffix, dtype)
                compare(gradient["emb"], expected, "grad", stem + "emb" + suffix)

    assert compared == 2 * 30 + 5 * (6 * 3 + (2 if hyper["clip"] else 0))


def test_one_table_per_field_with_given_counts_ends_where_the_fused_table_does(load_golden: Any) -> None:
    golden = load_golden("traj_i_seed101")
    hyper = golden.facts["hyper"]
    dtype = torch.float64
    rows = [hyper["vocab"][field] for field in FIELDS]
    tables = [nn.Embedding(n, hyper["dim"], sparse=True, dtype=dtype) for n in rows]
    linears = [nn.Embedding(n, 1, dtype=dtype) for n in rows]
    network = make_model(golden, dtype).network
    with torch.no_grad():
        for field, embedding, linear in zip(FIELDS, tables, linears, strict=True):
            embedding.weight.copy_(golden.tensor(f"init_emb_{field}"))
            linear.weight.copy_(golden.tensor(f"init_lin_{field}"))
    optimizer = CowClip(
        [
            {
                "params": [t.weight for t in tables],
                "kind": "embedding",
                "lr": hyper["lr_emb"],
                "l2": hyper["l2"],
            },
            {
                "params": [t.weight for t in linears],
                "kind": "first_order",
                "lr": hyper["lr_emb"],
                "l2": hyper["l2"],
            },
            {"params": network.parameters(), "kind": "dense", "lr": hyper["lr_dense"]},
        ],
        ratio=hyper["r"],
        zeta=hyper["zeta"],
    )
    schedule = LinearWarmup(optimizer, warmup_steps=hyper["warmup_steps"])

    for ids, labels in zip(golden.tensor("ids").long(), golden.tensor("labels"), strict=True):
        columns = ids.unbind(1)
        embeddings = torch.stack([t(column) for t, column in zip(tables, columns, strict=True)], 1)
        first_order = torch.stack([t(column) for t, column in zip(linears, columns, strict=True)]).sum((0, 2))
        logits = network(torch.zeros(len(ids), 0, dtype=dtype), embeddings, first_order)
        optimizer.zero_grad()
        torch.autograd.backward(cross_entropy(logits, labels))
        counts = {t.weight: count_rows(column, n) for t, column, n in zip(tables, columns, rows, strict=True)}
        optimizer.step(counts=counts)
        schedule.step()

    for field, embedding in zip(FIELDS, tables, strict=True):
        expected = golden.tensor(f"f64logits_step30_emb_{field}")
        torch.testing.assert_close(
            embedding.weight.detach(), expected, **tolerance(golden, "f64logits", "all")
        )
