"""The fast layers give the values and gradients of the plain loop."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stampede.kernels import mlp
from stampede.kernels.mlp import _Layers, plain_mlp


def make_layers(
    widths: list[int], *, dtype: torch.dtype = torch.float32, seed: int = 0
) -> tuple[list[Tensor], list[Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    weights = [
        torch.randn(after, before, generator=generator, dtype=dtype).div_(before**0.5).requires_grad_()
        for before, after in itertools.pairwise(widths)
    ]
    biases = [torch.randn(after, generator=generator, dtype=dtype).requires_grad_() for after in widths[1:]]
    return weights, biases


def run(
    function: Any, x: Tensor, weights: list[Tensor], biases: list[Tensor], incoming: Tensor
) -> list[Tensor]:
    """Give the result and the gradients of everything that wants one."""
    wanting = [tensor for tensor in (x, *weights, *biases) if tensor.requires_grad]
    out = function(x, weights, biases)
    grads = torch.autograd.grad(out, wanting, incoming.to(out.dtype))
    return [out.detach(), *grads]


def of_same_shape(x: Tensor, width: int) -> Tensor:
    return torch.randn(len(x), width, dtype=x.dtype, generator=torch.Generator().manual_seed(5))


class Taken:
    """Whether the fast layers were."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = 0
        apply = _Layers.apply

        def counting(*arguments: Any) -> Any:
            self.times += 1
            return apply(*arguments)  # type: ignore[no-untyped-call]

        monkeypatch.setattr(_Layers, "apply", counting)


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> Taken:
    return Taken(monkeypatch)


needs_onednn = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(),  # type: ignore[no-untyped-call]
    reason="this torch has no oneDNN",
)


@settings(deadline=None, max_examples=40, derandomize=True)
@given(
    rows=st.integers(1, 200),
    widths=st.lists(st.integers(1, 70), min_size=2, max_size=5),
    input_wants=st.booleans(),
    seed=st.integers(0, 999),
)
def test_values_and_all_gradients_are_those_of_the_plain_loop(
    rows: int, widths: list[int], input_wants: bool, seed: int
) -> None:
    weights, biases = make_layers(widths, seed=seed)
    x = torch.randn(rows, widths[0], generator=torch.Generator().manual_seed(seed), requires_grad=input_wants)
    incoming = of_same_shape(x, widths[-1])

    found = run(mlp, x, weights, biases, incoming)

    for a, b in zip(found, run(plain_mlp, x, weights, biases, incoming), strict=True):
        # ReLU cuts at 0, where rounding decides; such values and gradients are small beside the others
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * max(1.0, float(b.abs().max())))


@needs_onednn
def test_float32_takes_the_fast_layers(fast: Taken) -> None:
    weights, biases = make_layers([5, 4, 3])

    mlp(torch.randn(2, 5), weights, biases)

    assert fast.times == 1


@needs_onednn
def test_float32_and_the_plain_loop_agree_on_a_large_batch() -> None:
    weights, biases = make_layers([273, 400, 100])
    x = torch.randn(1500, 273, requires_grad=True)
    incoming = of_same_shape(x, 100)

    found = run(mlp, x, weights, biases, incoming)

    for a, b in zip(found, run(plain_mlp, x, weights, biases, incoming), strict=True):
        assert float((a - b).norm() / b.norm()) < 1e-5


@pytest.mark.parametrize("rows", [1, 50])
def test_float64_takes_the_plain_loop(rows: int, fast: Taken) -> None:
    weights, biases = make_layers([5, 4, 3], dtype=torch.float64)
    x = torch.randn(rows, 5, dtype=torch.float64, requires_grad=True)

    found = run(mlp, x, weights, biases, of_same_shape(x, 3))

    assert fast.times == 0
    for a, b in zip(found, run(plain_mlp, x, weights, biases, of_same_shape(x, 3)), strict=True):
        assert torch.equal(a, b)


def test_a_batch_without_rows_takes_the_plain_loop(fast: Taken) -> None:
    weights, biases = make_layers([5, 4, 3])
    x = torch.randn(0, 5, requires_grad=True)

    out, x_grad, *others = run(mlp, x, weights, biases, torch.zeros(0, 3))

    assert fast.times == 0
    assert out.shape == (0, 3)
    assert x_grad.shape == (0, 5)
    assert not any(bool(grad.any()) for grad in others)


def test_a_compiler_sees_the_plain_loop(fast: Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, biases = make_layers([5, 4, 3])
    x = torch.randn(6, 5)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)

    out = mlp(x, weights, biases)

    assert fast.times == 0
    assert torch.equal(out, plain_mlp(x, weights, biases))


def test_an_exported_program_is_of_plain_operations() -> None:
    class Layers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            weights, biases = make_layers([5, 4, 3])
            self.weights = torch.nn.ParameterList(weights)
            self.biases = torch.nn.ParameterList(biases)

        def forward(self, x: Tensor) -> Tensor:
            return mlp(x, list(self.weights), list(self.biases))

    layers, x = Layers(), torch.randn(6, 5)

    program = torch.export.export(layers, (x,))

    operations = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert operations == {"aten.linear.default", "aten.relu.default"}
    torch.testing.assert_close(program.module()(x), layers(x))


# --- bfloat16 -----------------------------------------------------------------------------------


@needs_onednn
@pytest.mark.parametrize("input_wants", [True, False])
def test_bfloat16_under_autocast_is_near_float32(input_wants: bool, fast: Taken) -> None:
    weights, biases = make_layers([30, 64, 32])
    x = torch.randn(500, 30, requires_grad=input_wants)
    incoming = of_same_shape(x, 32)

    with torch.autocast("cpu", torch.bfloat16):
        out, *grads = run(mlp, x, weights, biases, incoming)

    assert fast.times == 1
    assert out.dtype == torch.bfloat16
    expected, *expected_grads = run(plain_mlp, x, weights, biases, incoming)
    assert float((out.float() - expected).norm() / expected.norm()) < 0.01
    for grad, wanted in zip(grads, expected_grads, strict=True):
        assert grad.dtype == torch.float32
        assert float((grad - wanted).norm() / wanted.norm()) < 0.1  # the signs of some activations turn


@needs_onednn
def test_bfloat16_inputs_get_bfloat16_gradients() -> None:
    weights, biases = make_layers([6, 4])
    x = torch.randn(9, 6).bfloat16().requires_grad_()

    with torch.autocast("cpu", torch.bfloat16):
        _, x_grad, *others = run(mlp, x, weights, biases, torch.ones(9, 4))

    assert x_grad.dtype == torch.bfloat16
    assert {grad.dtype for grad in others} == {torch.float32}


def test_autocast_to_float16_takes_the_plain_loop(fast: Taken) -> None:
    weights, biases = make_layers([6, 4])

    with torch.autocast("cpu", torch.float16):
        out = mlp(torch.randn(9, 6), weights, biases)

    assert fast.times == 0
    assert out.dtype == torch.float16


# --- what is left alone -------------------------------------------------------------------------


@needs_onednn
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("input_wants", [True, False])
def test_the_gradient_that_comes_in_is_only_read(input_wants: bool, layers: int, dtype: torch.dtype) -> None:
    """It may be that of another branch of the network too."""
    weights, biases = make_layers([5, *[4] * layers])
    x = torch.randn(7, 5, requires_grad=input_wants)
    incoming = torch.randn(7, 4).to(dtype)
    before = incoming.clone()
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        out = mlp(x, weights, biases)

    torch.autograd.backward(out, incoming)

    assert torch.equal(incoming, before)


@needs_onednn
def test_inputs_weights_and_what_was_kept_of_them_are_only_read() -> None:
    weights, biases = make_layers([5, 4, 3])
    x = torch.randn(7, 5, requires_grad=True)
    before = [tensor.detach().clone() for tensor in (x, *weights, *biases)]
    out = mlp(x, weights, biases)
    kept = out.detach().clone()

    first = torch.autograd.grad(out, [x, *weights], torch.ones(7, 3), retain_graph=True)
    second = torch.autograd.grad(out, [x, *weights], torch.ones(7, 3))

    assert torch.equal(out, kept)
    assert all(torch.equal(a, b) for a, b in zip(before, (x, *weights, *biases), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("layout", ["transposed", "sliced", "expanded"])
def test_inputs_and_incoming_gradients_need_not_be_contiguous(layout: str) -> None:
    weights, biases = make_layers([5, 4, 3])

    def laid_out(values: Tensor) -> Tensor:
        if layout == "transposed":
            return values.T.contiguous().T
        if layout == "sliced":
            return torch.cat([values, values], 1)[:, : values.shape[1]]
        return values[:1].expand_as(values)

    x = laid_out(torch.randn(7, 5)).detach().requires_grad_()
    incoming = laid_out(torch.randn(7, 3))
    assert not x.is_contiguous()

    found = run(mlp, x, weights, biases, incoming)

    for a, b in zip(found, run(plain_mlp, x, weights, biases, incoming), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_weights_that_want_no_gradient_get_none() -> None:
    weights, biases = make_layers([5, 4, 3])
    weights[0].requires_grad_(False)
    x = torch.randn(7, 5, requires_grad=True)

    torch.autograd.backward(mlp(x, weights, biases).sum())

    assert weights[0].grad is None
    assert weights[1].grad is not None
    assert x.grad is not None


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["weight", "bias"])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_a_weight_that_is_not_finite_shows_in_every_row(
    precision: torch.dtype, where: str, value: float
) -> None:
    """Else a run that has diverged would go on with a finite loss: a maximum of 0 and NaN may be 0."""
    weights, biases = make_layers([5, 4, 3])
    with torch.no_grad():
        {"weight": weights[0], "bias": biases[0]}[where].view(-1)[1] = value

    with torch.autocast("cpu", torch.bfloat16, enabled=precision == torch.bfloat16):
        out = mlp(torch.randn(7, 5), weights, biases)

    assert not out.isfinite().all(1).any()


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_an_input_that_is_not_a_number_shows_in_its_row_alone(precision: torch.dtype) -> None:
    weights, biases = make_layers([5, 4, 3])
    x = torch.randn(7, 5)
    x[2, 1] = math.nan

    with torch.autocast("cpu", torch.bfloat16, enabled=precision == torch.bfloat16):
        out = mlp(x, weights, biases)

    assert out.isfinite().all(1).tolist() == [row != 2 for row in range(7)]
