"""What the DCN family shares: cross layers and an MLP, side by side."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stampede.training.models.layers import MLP, DenseLinear, join_inputs, make_linear
from stampede.training.models.network import Network, NetworkOptions


class CrossAndDeep(Network):
    """Cross layers and an MLP over one input, side by side ("parallel"), plus a first-order part.

    ::

        x_0 = [embeddings, dense]
        logit = sum_f w[f, id_f] + dense . w_dense + W [cross(x_0), MLP(x_0)] + b

    The papers of DCN have no first-order part; the reference program (after DeepCTR) does.

    Parameters
    ----------
    options:
        The sizes.
    cross:
        Maps ``x_0 [B, n]`` to ``[B, n]``.
    generator:
        Source of the initial values.
    """

    def __init__(
        self, options: NetworkOptions, *, cross: nn.Module, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.dense_linear = DenseLinear(options.n_dense, generator=generator)
        self.cross = cross
        self.mlp = MLP(options.input_width, options.hidden, generator=generator)
        self.output = make_linear(options.input_width + options.hidden[-1], 1, generator=generator)

    def forward(self, dense: Tensor, embeddings: Tensor, first_order: Tensor) -> Tensor:
        """Compute the logits ``[B]`` from ``[B, n_dense]``, ``[B, F, d]`` and ``[B]``."""
        x0 = join_inputs(dense, embeddings)  # [B, n]
        both = torch.cat([self.cross(x0), self.mlp(x0)], 1)  # [B, n + hidden[-1]]
        logits: Tensor = self.dense_linear(dense, first_order) + self.output(both).squeeze(1)
        return logits
