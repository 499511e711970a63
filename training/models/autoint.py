"""AutoInt+ (Song et al., arXiv 1810.11921)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from stampede.training.models.layers import MLP, DenseFields, glorot_normal_, join_inputs, make_linear
from stampede.training.models.network import Network, NetworkOptions


class InteractingLayer(nn.Module):
    """Fields that attend to one another, in several heads (eq. 5 to 8 of the paper).

    ::

        a[h, i, j] = softmax_j((Q_h e_i) . (K_h e_j) / sqrt(k))
        e'_i = relu([sum_j a[h, i, j] V_h e_j for each head h] + R e_i)

    The division by sqrt(k) is the authors' program's; the paper writes the product alone.

    Parameters
    ----------
    inputs:
        Values of a vector.
    heads, width:
        Heads, and values of a head, k; a vector comes out with ``heads * width`` values.
    generator:
        Source of the initial values.
    """

    def __init__(
        self, inputs: int, *, heads: int, width: int, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.heads, self.width = heads, width

        def draw() -> nn.Parameter:
            weight = torch.empty(heads * width, inputs)
            return nn.Parameter(
                glorot_normal_(weight, fan_in=inputs, fan_out=heads * width, generator=generator)
            )

        self.query = draw()  # [h * k, n], like those below
        self.key = draw()
        self.value = draw()
        self.residual = draw()

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, N, n]`` to ``[B, N, h * k]``."""
        rows, fields, _ = x.shape
        query, key, value = (  # [B, h, N, k] each
            functional.linear(x, weight).view(rows, fields, self.heads, self.width).transpose(1, 2)
            for weight in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(2, 3) / math.sqrt(self.width)  # [B, h, N, N]
        mixed = torch.softmax(scores, 3) @ value  # [B, h, N, k]
        joined = mixed.transpose(1, 2).flatten(2)  # [B, N, h * k]
        return functional.relu(joined + functional.linear(x, self.residual))  # [B, N, h * k]


class AutoInt(Network):
    """Self-attention over the fields and an MLP, side by side: the paper's AutoInt+.

    ::

        e = the embeddings, and x_j v_j for each dense feature x_j (eq. 4)
        logit = w . attention(e) + W MLP([embeddings, dense]) + b

    The paper has no first-order part: the layers' residual connections carry the fields themselves.
    """

    uses_first_order = False

    def __init__(self, options: NetworkOptions, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        heads, width = options.attention_heads, options.attention_dim
        self.dense_fields = DenseFields(options.n_dense, options.embedding_dim, generator=generator)
        self.attention = nn.Sequential(
            *(
                InteractingLayer(inputs, heads=heads, width=width, generator=generator)
                for inputs in [options.embedding_dim, *[heads * width] * (options.attention_layers - 1)]
            )
        )
        self.mlp = MLP(options.input_width, options.hidden, generator=generator)
        attended = (options.n_fields + options.n_dense) * heads * width
        self.output = make_linear(attended + options.hidden[-1], 1, generator=generator)

    def forward(self, dense: Tensor, embeddings: Tensor, first_order: Tensor) -> Tensor:
        """Compute the logits ``[B]`` from ``[B, n_dense]`` and ``[B, F, d]``; ``first_order`` is not read."""
        attended = self.attention(self.dense_fields(dense, embeddings))  # [B, F + n_dense, h * k]
        deep = self.mlp(join_inputs(dense, embeddings))  # [B, hidden[-1]]
        logits: Tensor = self.output(torch.cat([attended.flatten(1), deep], 1)).squeeze(1)
        return logits.to(embeddings.dtype)
