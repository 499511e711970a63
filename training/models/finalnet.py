"""FINAL with one block (Zhu et al., SIGIR 2023, doi 10.1145/3539618.3591988)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from stampede.training.models.layers import join_inputs, make_linear
from stampede.training.models.network import Network, NetworkOptions


class FactorizedInteraction(nn.Module):
    """A linear layer whose result is multiplied by a second one, and added.

    ::

        h = W_1 x + b_1
        y = h + h * (W_2 x + b_2)

    The paper's layer for second order, with the identity as the activation of the second factor, as in the
    authors' program (``residual_type="sum"`` in FuxiCTR).
    """

    def __init__(self, inputs: int, outputs: int, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.linear = make_linear(inputs, outputs, generator=generator)
        self.factor = make_linear(inputs, outputs, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, inputs]`` to ``[B, outputs]``."""
        h = self.linear(x)  # [B, outputs]
        return torch.addcmul(h, h, self.factor(x))  # [B, outputs]


class FinalBlock(nn.Module):
    """:class:`FactorizedInteraction` layers, each followed by ReLU: L of them reach degree 2^L."""

    def __init__(
        self, inputs: int, hidden: Sequence[int], *, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            FactorizedInteraction(before, after, generator=generator)
            for before, after in pairwise([inputs, *hidden])
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, inputs]`` to ``[B, hidden[-1]]``."""
        for layer in self.layers:
            x = functional.relu(layer(x))
        return x


class FinalNet(Network):
    """One block of factorized interaction layers in the place of an MLP: the paper's FINAL (1B).

    ::

        logit = W FinalBlock([embeddings, dense]) + b

    The paper has no first-order part. Its batch normalisation is left out: a row's logit would depend on the
    rows beside it, and so on how a batch is cut. Left out too are the second block, whose training needs a
    loss of its own, and the gate of fields, which the authors treat as a setting.
    """

    uses_first_order = False

    def __init__(self, options: NetworkOptions, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.block = FinalBlock(options.input_width, options.hidden, generator=generator)
        self.output = make_linear(options.hidden[-1], 1, generator=generator)

    def forward(self, dense: Tensor, embeddings: Tensor, first_order: Tensor) -> Tensor:
        """Compute the logits ``[B]`` from ``[B, n_dense]`` and ``[B, F, d]``; ``first_order`` is not read."""
        logits: Tensor = self.output(self.block(join_inputs(dense, embeddings))).squeeze(1)
        return logits.to(embeddings.dtype)
