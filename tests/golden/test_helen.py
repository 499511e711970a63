"""Ten steps of Helen give the numbers of its authors' program.

The model is that of the trajectories of CowClip: ``relu(x W1 + b1) W2 + b2`` over the embeddings side by
side, plus the first-order weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from stampede.kernels import count_rows
from stampede.training.embedding import FusedEmbedding
from stampede.training.loss import cross_entropy
from stampede.training.optim import Helen

FIELDS = ("C1", "C2", "C3")
NET = ("W1", "b1", "W2", "b2")
CASES = ["helen_a_seed101", "helen_b_seed101"]
PRECISIONS = [
    pytest.param("f64", torch.float64, id="float64"),
    pytest.param("f32", torch.float32, id="float32"),
]


class Model:
    """The golden model, its tables one for all fields or one for each."""

    def __init__(self, golden: Any, dtype: torch.dtype, *, fused: bool) -> None:
        self.fused = fused
        self.net = {name: nn.Parameter(golden.tensor(f"init_{name}", dtype=dtype)) for name in NET}
        start = {
            kind: [golden.tensor(f"init_{kind}_{field}", dtype=dtype) for field in FIELDS]
            for kind in ("emb", "lin")
        }
        self.sizes = [len(table) for table in start["emb"]]
        self.fused_tables = {
            kind: FusedEmbedding(self.sizes, tables[0].shape[1], dtype=dtype)
            for kind, tables in start.items()
        }
        with torch.no_grad():
            for kind, tables in start.items():
                self.fused_tables[kind].weight.copy_(torch.cat(tables))
        self.tables = {kind: [nn.Parameter(table) for table in tables] for kind, tables in start.items()}

    def parameters(self, kind: str) -> list[nn.Parameter]:
        return [self.fused_tables[kind].weight] if self.fused else self.tables[kind]

    def logits(self, ids: Tensor) -> Tensor:
        if self.fused:
            embeddings, linear = self.fused_tables["emb"](ids), self.fused_tables["lin"](ids)
        else:
            columns = ids.long().unbind(1)
            embeddings, linear = (
                torch.stack([table[column] for table, column in zip(tables, columns, strict=True)], 1)
                for tables in (self.tables["emb"], self.tables["lin"])
            )
        hidden = functional.relu(embeddings.flatten(1) @ self.net["W1"] + self.net["b1"])
        deep = (hidden @ self.net["W2"] + self.net["b2"]).squeeze(1)
        logits: Tensor = deep + linear.sum((1, 2))
        return logits

    def counts(self, ids: Tensor) -> dict[Tensor, Tensor] | None:
        if self.fused:
            return None
        return {
            table: count_rows(ids[:, field], self.sizes[field])
            for field, table in enumerate(self.tables["emb"])
        }

    def named(self, of: Mapping[Tensor, Tensor]) -> dict[str, Tensor]:
        """Give what is known of each parameter under the golden names."""
        named = {name: of[parameter] for name, parameter in self.net.items()}
        for kind in ("emb", "lin"):
            values = [of[parameter] for parameter in self.parameters(kind)]
            parts = torch.split(values[0], self.sizes) if self.fused else values
            named |= {f"{kind}_{field}": part for field, part in zip(FIELDS, parts, strict=True)}
        return named

    def all_parameters(self) -> list[nn.Parameter]:
        return [*self.parameters("emb"), *self.parameters("lin"), *self.net.values()]


def make_optimizer(golden: Any, model: Model) -> Helen:
    hyper = golden.facts["hyper"]
    assert hyper["weight_decay"] == 0
    l2 = hyper["l2_half"] / 2
    tables = {"sizes": model.sizes} if model.fused else {}
    return Helen(
        [
            {
                "params": model.parameters("emb"),
                "kind": "embedding",
                "lr": hyper["lr_embed"],
                "l2": l2,
                **tables,
            },
            {
                "params": model.parameters("lin"),
                "kind": "first_order",
                "lr": hyper["lr_net"],
                "l2": l2,
                **tables,
            },
            {"params": list(model.net.values()), "kind": "dense", "lr": hyper["lr_net"]},
        ],
        rho=hyper["rho"],
        bound=hyper["bound"],
        perturb="all" if hyper["net_pert"] else "tables",
        betas=(hyper["beta1"], hyper["beta2"]),
        eps=hyper["eps"],
    )


@pytest.mark.parametrize("fused", [True, False], ids=["one table", "a table per field"])
@pytest.mark.parametrize(("prefix", "dtype"), PRECISIONS)
@pytest.mark.parametrize("name", CASES)
def test_ten_steps_are_the_references(
    name: str, prefix: str, dtype: torch.dtype, fused: bool, load_golden: Any
) -> None:
    golden = load_golden(name)
    hyper = golden.facts["hyper"]
    tolerances = golden.facts["tolerance"][prefix]
    model = Model(golden, dtype, fused=fused)
    optimizer = make_optimizer(golden, model)
    compared = 0

    def compare(actual: Tensor | float, expected: Tensor, what: str, label: str) -> None:
        nonlocal compared
        torch.testing.assert_close(
            torch.as_tensor(actual, dtype=torch.float64).detach(),
            expected.to(torch.float64),
            **(tolerances.get("all") or tolerances[what]),
            msg=lambda message: f"{label}: {message}",
        )
        compared += 1

    for k in range(hyper["steps"]):
        ids, labels = golden.tensor("ids")[k], golden.tensor("labels")[k]
        passes: list[dict[str, dict[str, Tensor]]] = []
        losses: list[float] = []

        def closure(
            ids: Tensor = ids,
            labels: Tensor = labels,
            passes: list[Any] = passes,
            losses: list[float] = losses,
        ) -> Tensor:
            optimizer.zero_grad()
            loss = cross_entropy(model.logits(ids), labels)
            torch.autograd.backward(loss)
            penalty = 0.0
            decayed = {}
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    weights = parameter.detach()
                    penalty += group["l2"] * float(weights.square().sum())
                    decayed[parameter] = parameter.grad + 2 * group["l2"] * weights
            passes.append(
                {
                    "weights": model.named({p: p.detach().clone() for p in model.all_parameters()}),
                    "grads": model.named(decayed),
                }
            )
            losses.append(float(loss.detach()) + penalty)
            return loss

        optimizer.step(closure, counts=model.counts(ids))

        for loss, which in zip(losses, ("first", "second"), strict=True):
            compare(loss, golden.tensor(f"{prefix}_loss_{which}")[k], "loss", f"loss of step {k + 1}")
        if k + 1 not in hyper["saved_steps"]:
            continue
        stem = f"{prefix}_step{k + 1:02d}_"
        state = optimizer.state
        found = {
            ("weights", ""): model.named({p: p.detach() for p in model.all_parameters()}),
            ("m", "_m"): model.named({p: state[p]["exp_avg"] for p in model.all_parameters()}),
            ("v", "_v"): model.named({p: state[p]["exp_avg_sq"] for p in model.all_parameters()}),
            ("grad", "_grad1"): passes[0]["grads"],
            ("grad", "_grad2"): passes[1]["grads"],
            ("perturbed", "_perturbed"): passes[1]["weights"],
        }
        for (what, suffix), values in found.items():
            for weight, value in values.items():
                compare(value, golden.tensor(stem + weight + suffix), what, stem + weight + suffix)

    assert compared == 2 * 10 + 4 * 6 * 10


def test_the_two_references_differ_in_what_moves(load_golden: Any) -> None:
    """So that each case tells what the other does not."""
    moves, decays = zip(
        *(
            (golden.facts["hyper"]["net_pert"], golden.facts["hyper"]["l2_half"] > 0)
            for golden in map(load_golden, CASES)
        ),
        strict=True,
    )

    assert moves == (False, True)
    assert decays == (False, True)
