"""DCN-V2 with a mixture of low-rank cross layers (Wang et al., arXiv 2008.13535, section 3.2)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from stampede.training.models.cross_deep import CrossAndDeep
from stampede.training.models.layers import glorot_normal_
from stampede.training.models.network import NetworkOptions


class MixtureCross(nn.Module):
    """Cross layers of E experts, each in its own subspace of rank r.

    ::

        x_{l+1} = sum_i G_i(x_l) E_i(x_l) + x_l
        E_i(x)  = x_0 * (U_li tanh(C_li tanh(V_li^T x)) + b_l)
        G(x)    = softmax_i(g_i . x)

    As in the reference program, the gates ``g_i`` are shared by all layers, the bias by all experts, and the
    fans of the initial values count the experts (Keras reads a third axis as a filter's extent).
    """

    def __init__(
        self,
        width: int,
        layers: int,
        *,
        low_rank: int,
        experts: int,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()

        def draw(rows: int, columns: int) -> nn.Parameter:
            weight = torch.empty(layers, experts, rows, columns)
            return nn.Parameter(
                glorot_normal_(weight, fan_in=rows * experts, fan_out=columns * experts, generator=generator)
            )

        self.u = draw(width, low_rank)  # [L, E, n, r]
        self.v = draw(width, low_rank)  # [L, E, n, r]
        self.c = draw(low_rank, low_rank)  # [L, E, r, r]
        self.bias = nn.Parameter(torch.zeros(layers, width))  # [L, n]
        bound = math.sqrt(6 / (width + 1))  # Keras' glorot_uniform, its default for the gates
        gate = torch.empty(experts, width).uniform_(-bound, bound, generator=generator)
        self.gate = nn.Parameter(gate)  # [E, n]

    def forward(self, x0: Tensor) -> Tensor:
        """Map ``[B, n]`` to ``[B, n]``."""
        x = x0
        layers = zip(self.u.unbind(), self.v.unbind(), self.c.unbind(), self.bias.unbind(), strict=True)
        for u, v, c, bias in layers:
            gates = torch.softmax(x @ self.gate.T, 1)  # [B, E]
            inner = torch.einsum("bn,enr->ber", x, v).tanh()  # [B, E, r]
            inner = torch.einsum("ber,esr->bes", inner, c).tanh()  # [B, E, r]
            # The gates sum to 1, so they may weigh the experts before these are projected back and x_0
            # multiplied.
            mixed = torch.einsum("be,ber,enr->bn", gates, inner, u)  # [B, n]
            x = torch.addcmul(x, x0, mixed + bias)  # [B, n]
        return x


class DCNv2Mix(CrossAndDeep):
    """:class:`CrossAndDeep` with :class:`MixtureCross` layers.

    It is what the CowClip paper's program trains under the name DCNv2.
    """

    cross: MixtureCross

    def __init__(self, options: NetworkOptions, *, generator: torch.Generator | None = None) -> None:
        cross = MixtureCross(
            options.input_width,
            options.cross_layers,
            low_rank=options.low_rank,
            experts=options.experts,
            generator=generator,
        )
        super().__init__(options, cross=cross, generator=generator)

    def cross_weights(self) -> list[nn.Parameter]:
        """Give ``U``, ``V`` and ``C``; the gates have no L2 in the reference program."""
        return [self.cross.u, self.cross.v, self.cross.c]
