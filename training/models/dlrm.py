"""DLRM (Naumov et al., arXiv 1906.00091)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stampede import ConfigError
from stampede.training.models.layers import MLP, make_linear
from stampede.training.models.network import Network, NetworkOptions


class DLRM(Network):
    """Dense features become one more vector; an MLP reads that vector and the products of all pairs.

    ::

        x = MLP_bottom(dense)                                              [d], where there are dense features
        v = (x, e_1, …, e_F)
        logit = W MLP_top([x, v_i . v_j for i > j]) + b

    The paper has no first-order part.

    Raises
    ------
    stampede.ConfigError
        There is one field and no dense feature: no pair to multiply.
    """

    uses_first_order = False

    def __init__(self, options: NetworkOptions, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        widths = (*options.bottom_hidden, options.embedding_dim)
        self.bottom = MLP(options.n_dense, widths, generator=generator) if options.n_dense else None
        self.dot = DotInteraction(options.n_fields + (options.n_dense > 0))
        width = self.dot.pairs + (options.embedding_dim if options.n_dense else 0)
        if width == 0:
            raise ConfigError("dlrm multiplies pairs: it needs two fields, or one and a dense feature")
        self.top = MLP(width, options.hidden, generator=generator)
        self.output = make_linear(options.hidden[-1], 1, generator=generator)

    def forward(self, dense: Tensor, embeddings: Tensor, first_order: Tensor) -> Tensor:
        """Compute the logits ``[B]`` from ``[B, n_dense]`` and ``[B, F, d]``; ``first_order`` is not read."""
        if self.bottom is None:
            features = self.dot(embeddings)  # [B, pairs]
        else:
            x = self.bottom(dense.to(embeddings.dtype))  # [B, d]
            products = self.dot(torch.cat([x.unsqueeze(1), embeddings], 1))  # [B, pairs]
            features = torch.cat([x, products], 1)  # [B, d + pairs]
        logits: Tensor = self.output(self.top(features)).squeeze(1)
        return logits.to(embeddings.dtype)


class DotInteraction(nn.Module):
    """The products of all pairs of N vectors: ``v_i . v_j for i > j``, row by row of the lower triangle.

    Parameters
    ----------
    vectors:
        N.

    Example
    -------
    >>> DotInteraction(3)(torch.tensor([[[1.0, 0.0], [2.0, 1.0], [0.0, 3.0]]]))
    tensor([[2., 0., 3.]])
    """

    positions: Tensor

    def __init__(self, vectors: int) -> None:
        super().__init__()
        row, column = torch.tril_indices(vectors, vectors, offset=-1)
        self.pairs = len(row)
        # Not persistent: they follow from N.
        self.register_buffer("positions", row * vectors + column, persistent=False)  # int64 [pairs]

    def forward(self, vectors: Tensor) -> Tensor:
        """Map ``[B, N, d]`` to ``[B, N * (N - 1) / 2]``."""
        products = vectors @ vectors.transpose(1, 2)  # [B, N, N]
        return products.flatten(1).index_select(1, self.positions)  # [B, pairs]
