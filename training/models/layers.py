"""The parts that networks are made of, with the initial values of the reference program.

The reference (bytedance/LargeBatchCTR) draws every matrix by Keras' ``glorot_normal`` and starts biases at 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from stampede.kernels import mlp

# Deviation of a standard normal cut at two deviations; Keras divides by it so that the drawn values have the
# deviation that was asked for.
_CUT_DEVIATION = 0.87962566103423978


def glorot_normal_(
    weight: Tensor, *, fan_in: int, fan_out: int, generator: torch.Generator | None = None
) -> Tensor:
    """Fill a tensor in place as Keras' ``glorot_normal`` does.

    A normal distribution of deviation ``sqrt(2 / (fan_in + fan_out))``, cut at two deviations (Glorot &
    Bengio 2010).
    """
    spread = math.sqrt(2 / (fan_in + fan_out)) / _CUT_DEVIATION
    return nn.init.trunc_normal_(weight, 0.0, spread, -2 * spread, 2 * spread, generator=generator)


def make_linear(inputs: int, outputs: int, *, generator: torch.Generator | None = None) -> nn.Linear:
    """Make a linear layer with ``glorot_normal`` weights and a zero bias."""
    # skip_init draws nothing from the global generator
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, inputs, outputs)  # type: ignore[no-untyped-call]
    glorot_normal_(layer.weight.data, fan_in=inputs, fan_out=outputs, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


class MLP(nn.Module):
    """Linear layers, each followed by ReLU: ``x = relu(W_l x + b_l)``."""

    def __init__(
        self, inputs: int, hidden: Sequence[int], *, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        widths = [inputs, *hidden]
        self.layers = nn.ModuleList(
            make_linear(before, after, generator=generator) for before, after in pairwise(widths)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, inputs]`` to ``[B, hidden[-1]]``."""
        linears = [layer for layer in self.layers if isinstance(layer, nn.Linear)]
        return mlp(x, [linear.weight for linear in linears], [linear.bias for linear in linears])


class DenseLinear(nn.Module):
    """The dense features' share of the first-order part: ``dense . w``, without a bias."""

    weight: nn.Parameter | None

    def __init__(self, n_dense: int, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        if n_dense == 0:
            self.register_parameter("weight", None)  # a parameter of no values helps nobody downstream
            return
        weight = glorot_normal_(torch.empty(n_dense), fan_in=n_dense, fan_out=1, generator=generator)
        self.weight = nn.Parameter(weight)  # [n_dense]

    def forward(self, dense: Tensor, first_order: Tensor) -> Tensor:
        """Add the share of ``dense [B, n_dense]`` to ``first_order [B]``."""
        return first_order if self.weight is None else first_order + dense @ self.weight  # [B]


class DenseFields(nn.Module):
    """A vector for each dense feature, times the feature, as fields after the others: ``e_j = x_j v_j``."""

    vectors: nn.Parameter | None

    def __init__(self, n_dense: int, embedding_dim: int, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        if n_dense == 0:
            self.register_parameter("vectors", None)
            return
        # as small as embeddings are: the spread of a weight matrix would outshout them
        vectors = torch.empty(n_dense, embedding_dim).normal_(0.0, 1e-2, generator=generator)
        self.vectors = nn.Parameter(vectors)  # [n_dense, d]

    def forward(self, dense: Tensor, embeddings: Tensor) -> Tensor:
        """Map ``[B, n_dense]`` and ``[B, F, d]`` to ``[B, F + n_dense, d]``."""
        if self.vectors is None:
            return embeddings
        fields = dense.to(embeddings.dtype).unsqueeze(2) * self.vectors  # [B, n_dense, d]
        return torch.cat([embeddings, fields], 1)


def join_inputs(dense: Tensor, embeddings: Tensor) -> Tensor:
    """Lay the embeddings side by side and the dense features after them: ``[B, F * d + n_dense]``."""
    flat = embeddings.flatten(1)  # [B, F * d]
    return torch.cat([flat, dense.to(flat.dtype)], 1) if dense.shape[1] else flat
