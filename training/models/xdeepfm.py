"""xDeepFM (Lian et al., arXiv 1803.05170)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from stampede.training.models.layers import MLP, DenseLinear, glorot_normal_, join_inputs, make_linear
from stampede.training.models.network import Network, NetworkOptions


class CompressedInteraction(nn.Module):
    """The compressed interaction network: each layer multiplies every map with every field (eq. 6 and 7).

    ::

        x^k_h = sum_ij W^k_hij (x^{k-1}_i * x^0_j)          vectors [d], h = 1 … H_k
        p^k_h = sum over d of x^k_h

    The result is all ``p^k`` side by side. Activations are the identity, the best in the paper, and all maps
    go on to the next layer (no "split half").
    """

    def __init__(self, fields: int, maps: Sequence[int], *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.weights = nn.ParameterList()
        for before, after in pairwise([fields, *maps]):
            weight = torch.empty(after, before * fields)
            glorot_normal_(weight, fan_in=before * fields, fan_out=after, generator=generator)
            self.weights.append(nn.Parameter(weight))  # [H_k, H_{k-1} * F]

    def forward(self, embeddings: Tensor) -> Tensor:
        """Map ``[B, F, d]`` to ``[B, H_1 + … + H_L]``."""
        x0 = embeddings.transpose(1, 2)  # [B, d, F]
        x, pooled = x0, []
        *inner, last = self.weights
        for weight in inner:
            # One of the d at a time, and its products anew in the backward pass: kept for all of them, they
            # are 61 KB a row at 39 fields and d = 10, and a step takes half as long again.
            x = torch.stack(
                [
                    checkpoint(_compress, maps, fields, weight, use_reentrant=False, preserve_rng_state=False)
                    for maps, fields in zip(x.unbind(1), x0.unbind(1), strict=True)
                ],
                1,
            )  # [B, d, H']
            pooled.append(x.sum(1))  # [B, H']
        # Of the last layer the sums over d alone are asked for, and they may be taken before the weights: d
        # times less to multiply.
        products = x.transpose(1, 2) @ x0  # [B, H, F]
        pooled.append(functional.linear(products.flatten(1), last))  # [B, H_L]
        return torch.cat(pooled, 1)


def _compress(maps: Tensor, fields: Tensor, weight: Tensor) -> Tensor:
    """Weigh the products of ``[B, H]`` and ``[B, F]``: ``[B, H']``."""
    products = maps.unsqueeze(2) * fields.unsqueeze(1)  # [B, H, F]
    return functional.linear(products.flatten(1), weight)  # [B, H']


class XDeepFM(Network):
    """A compressed interaction network and an MLP over the same embeddings, plus a first-order part.

    ::

        logit = sum_f w[f, id_f] + dense . w_dense + W [CIN(embeddings), MLP([embeddings, dense])] + b
    """

    def __init__(self, options: NetworkOptions, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.dense_linear = DenseLinear(options.n_dense, generator=generator)
        self.cin = CompressedInteraction(options.n_fields, options.cin_layers, generator=generator)
        self.mlp = MLP(options.input_width, options.hidden, generator=generator)
        self.output = make_linear(sum(options.cin_layers) + options.hidden[-1], 1, generator=generator)

    def forward(self, dense: Tensor, embeddings: Tensor, first_order: Tensor) -> Tensor:
        """Compute the logits ``[B]`` from ``[B, n_dense]``, ``[B, F, d]`` and ``[B]``."""
        deep = self.mlp(join_inputs(dense, embeddings))  # [B, hidden[-1]]
        both = torch.cat([self.cin(embeddings), deep], 1)  # [B, H_1 + … + H_L + hidden[-1]]
        logits: Tensor = self.dense_linear(dense, first_order) + self.output(both).squeeze(1)
        return logits
