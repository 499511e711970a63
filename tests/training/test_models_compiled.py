"""Every network in bfloat16 autocast, and as one graph for any number of rows."""

from typing import Any

import pytest
import torch
from torch import Tensor

from stampede.training.models import MODELS, Network, NetworkOptions

NAMES = list(MODELS)


def make_network(name: str, *, n_dense: int) -> Network:
    options = NetworkOptions(
        n_fields=5,
        n_dense=n_dense,
        embedding_dim=4,
        hidden=(16, 8),
        low_rank=2,
        experts=2,
        bottom_hidden=(6,),
        cin_layers=(6, 5),
        attention_layers=2,
        attention_dim=4,
    )
    return MODELS[name](options, generator=torch.Generator().manual_seed(0))


def make_inputs(rows: int, *, n_dense: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    shapes: list[tuple[int, ...]] = [(rows, n_dense), (rows, 5, 4), (rows,)]
    dense, embeddings, first_order = (torch.randn(shape, generator=generator) for shape in shapes)
    return dense, embeddings, first_order


@pytest.mark.parametrize("n_dense", [0, 3])
@pytest.mark.parametrize("name", NAMES)
def test_bfloat16_autocast_gives_float32_logits_and_gradients_near_those_of_float32(
    name: str, n_dense: int
) -> None:
    network = make_network(name, n_dense=n_dense)
    dense, embeddings, first_order = make_inputs(64, n_dense=n_dense)
    results = []
    for enabled in (False, True):
        leaf = embeddings.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            logits = network(dense, leaf, first_order)
        torch.autograd.backward(logits.square().sum())
        assert leaf.grad is not None
        results.append((logits.detach(), leaf.grad))

    for exact, rounded in zip(*results, strict=True):
        assert rounded.dtype == torch.float32
        assert bool(rounded.isfinite().all())
        assert (rounded - exact).norm() < 0.1 * exact.norm()


@pytest.mark.parametrize("name", NAMES)
def test_a_network_is_one_graph_for_any_number_of_rows(name: str) -> None:
    network = make_network(name, n_dense=3)
    rows: Any = torch.export.Dim("rows")

    program = torch.export.export(
        network, make_inputs(6, n_dense=3), dynamic_shapes=({0: rows}, {0: rows}, {0: rows})
    )

    inputs = make_inputs(9, n_dense=3)
    torch.testing.assert_close(program.module()(*inputs), network(*inputs))
