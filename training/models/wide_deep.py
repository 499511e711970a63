"""Wide & Deep (Cheng et al., arXiv 1606.07792)."""

from __future__ import annotations

import torch
from torch import Tensor

from stampede.training.models.layers import MLP, DenseLinear, join_inputs, make_linear
from stampede.training.models.network import Network, NetworkOptions


class WideDeep(Network):
    """A first-order part and an MLP, added.

    ::

        logit = sum_f w[f, id_f] + dense . w_dense + W MLP([embeddings, dense]) + b
    """

    def __init__(self, options: NetworkOptions, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.dense_linear = DenseLinear(options.n_dense, generator=generator)
        self.mlp = MLP(options.input_width, options.hidden, generator=generator)
        self.output = make_linear(options.hidden[-1], 1, generator=generator)

    def forward(self, dense: Tensor, embeddings: Tensor, first_order: Tensor) -> Tensor:
        """Compute the logits ``[B]`` from ``[B, n_dense]``, ``[B, F, d]`` and ``[B]``."""
        wide = self.dense_linear(dense, first_order)  # [B]
        deep = self.output(self.mlp(join_inputs(dense, embeddings))).squeeze(1)  # [B]
        logits: Tensor = wide + deep
        return logits
