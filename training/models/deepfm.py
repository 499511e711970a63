"""DeepFM (Guo et al., arXiv 1703.04247)."""

from __future__ import annotations

import torch
from torch import Tensor

from stampede.kernels import pairwise_sum
from stampede.training.models.layers import MLP, DenseLinear, join_inputs, make_linear
from stampede.training.models.network import Network, NetworkOptions


class DeepFM(Network):
    """A factorization machine and an MLP over the same embeddings, added.

    ::

        logit = sum_f w[f, id_f] + dense . w_dense + FM(embeddings) + W MLP([embeddings, dense]) + b
        FM(e) = sum over pairs f < g of e_f . e_g
    """

    def __init__(self, options: NetworkOptions, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.dense_linear = DenseLinear(options.n_dense, generator=generator)
        self.mlp = MLP(options.input_width, options.hidden, generator=generator)
        self.output = make_linear(options.hidden[-1], 1, generator=generator)

    def forward(self, dense: Tensor, embeddings: Tensor, first_order: Tensor) -> Tensor:
        """Compute the logits ``[B]`` from ``[B, n_dense]``, ``[B, F, d]`` and ``[B]``."""
        linear = self.dense_linear(dense, first_order)  # [B]
        deep = self.output(self.mlp(join_inputs(dense, embeddings))).squeeze(1)  # [B]
        logits: Tensor = linear + pairwise_sum(embeddings) + deep
        return logits
