"""Factorization machine (Rendle, ICDM 2010)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stampede.kernels import pairwise_sum
from stampede.training.models.layers import DenseFields, DenseLinear
from stampede.training.models.network import Network, NetworkOptions


class FM(Network):
    """A first-order part and the products of all pairs of fields, and no MLP.

    ::

        logit = b + sum_f w[f, id_f] + dense . w_dense + sum over pairs i < j of v_i . v_j

    The vectors ``v`` are the embeddings and, as in the paper, ``x_j v_j`` for each dense feature ``x_j``.
    """

    def __init__(self, options: NetworkOptions, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.dense_linear = DenseLinear(options.n_dense, generator=generator)
        self.dense_fields = DenseFields(options.n_dense, options.embedding_dim, generator=generator)
        self.bias = nn.Parameter(torch.zeros(1))  # [1]

    def forward(self, dense: Tensor, embeddings: Tensor, first_order: Tensor) -> Tensor:
        """Compute the logits ``[B]`` from ``[B, n_dense]``, ``[B, F, d]`` and ``[B]``."""
        linear = self.dense_linear(dense, first_order) + self.bias  # [B]
        logits: Tensor = linear + pairwise_sum(self.dense_fields(dense, embeddings))
        return logits
