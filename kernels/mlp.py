"""Linear layers with ReLU: the matrix products that a click model's time goes to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

_ONEDNN: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]


def mlp(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Tensor:
    """Apply layers in turn: ``x = relu(x W_l^T + b_l)``.

    On a CPU, float32 goes through oneDNN, which adds the bias and cuts below 0 while a tile of the product is
    in registers and which multiplies faster than the library behind ``torch.matmul`` there (measured on an
    EPYC with AVX-512: 8 to 16% forward, 20 to 30% backward to the input). Under ``torch.autocast`` to
    bfloat16, products, activations and their gradients are bfloat16, sums and weights float32. Elsewhere it
    is the plain loop.

    Parameters
    ----------
    x:
        ``[B, inputs]``.
    weights, biases:
        ``[outputs, inputs]`` and ``[outputs]`` of each layer.

    Returns
    -------
    Tensor
        ``[B, outputs of the last]``; bfloat16 under autocast.
    """
    dtype = _fast_dtype(x, weights)
    if dtype is None:
        return plain_mlp(x, weights, biases)
    result: Tensor = _Layers.apply(x, dtype, *weights, *biases)  # type: ignore[no-untyped-call]
    return result


def plain_mlp(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Tensor:
    """Apply the layers one by one: the definition of :func:`mlp`."""
    for weight, bias in zip(weights, biases, strict=True):
        x = functional.relu(functional.linear(x, weight, bias))
    return x


def _fast_dtype(x: Tensor, weights: Sequence[Tensor]) -> torch.dtype | None:
    """Return the dtype of the products; None where the plain loop is to be taken."""
    if torch.compiler.is_compiling() or not _ONEDNN or not x.shape[0]:
        return None
    if x.device.type != "cpu" or any(weight.dtype != torch.float32 for weight in weights):
        return None
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        return dtype if dtype == torch.bfloat16 else None
    return torch.float32 if x.dtype == torch.float32 else None


class _Layers(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype, *parameters: Tensor) -> Tensor:
        """Apply the layers and keep what each of them read."""
        layers = len(parameters) // 2
        weights = [weight.to(dtype) for weight in parameters[:layers]]
        biases = [bias.to(dtype) for bias in parameters[layers:]]
        activations = [x.to(dtype)]
        for weight, bias in zip(weights, biases, strict=True):
            activations.append(
                torch.ops.mkldnn._linear_pointwise(activations[-1], weight, bias, "relu", [], "")
            )
        # oneDNN's ReLU makes 0 of NaN: a row that has diverged, or all where a weight has, is to show
        sums = x.sum(1, keepdim=True) + torch.stack([parameter.sum() for parameter in parameters]).sum()
        activations[-1] += (0 * sums).to(dtype)
        ctx.save_for_backward(*activations, *weights)
        ctx.input_dtype = x.dtype
        return activations[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grads: Tensor) -> tuple[Tensor | None, ...]:
        """Go back through the layers; what a layer hands down is overwritten by the one below."""
        from stampede.kernels.cpu.activations import relu_bias_backward_

        layers = len(ctx.saved_tensors) // 2
        activations, weights = ctx.saved_tensors[: layers + 1], ctx.saved_tensors[layers + 1 :]
        weight_grads: list[Tensor] = []
        bias_grads: list[Tensor] = []
        grads = grads.clone(memory_format=torch.contiguous_format)  # what came from above is not ours
        for layer in reversed(range(layers)):
            bias_grads.append(relu_bias_backward_(grads, activations[layer + 1]))
            weight_grads.append((grads.T @ activations[layer]).float())
            if layer == 0 and not ctx.needs_input_grad[0]:
                return None, None, *reversed(weight_grads), *reversed(bias_grads)
            grads = torch.ops.mkldnn._linear_pointwise(grads, weights[layer].T, None, "none", [], "")
        return grads.to(ctx.input_dtype), None, *reversed(weight_grads), *reversed(bias_grads)
