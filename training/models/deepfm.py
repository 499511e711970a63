"""DeepFM (Guo et al., arXiv 1703.04247)."""

from __future__ import annotations

import torch
from torch import Tensor

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


def pairwise_sum(embeddings: Tensor) -> Tensor:
    """Sum the products of all pairs of fields, in time linear in F (Rendle 2010, lemma 3.1).

    ``sum over f < g of e_f . e_g = 1/2 * sum over d of [(sum_f e_fd)^2 - sum_f e_fd^2]``

    Parameters
    ----------
    embeddings:
        ``[B, F, d]``.

    Returns
    -------
    Tensor
        ``[B]``; 0 for one field.
    """
    square_of_sum = embeddings.sum(1).square().sum(1)  # [B]
    sum_of_squares = embeddings.square().sum((1, 2))  # [B]
    return 0.5 * (square_of_sum - sum_of_squares)
