"""DCN-V2 with full-rank cross layers (Wang et al., arXiv 2008.13535)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from stampede.training.models.cross_deep import CrossAndDeep
from stampede.training.models.layers import glorot_normal_
from stampede.training.models.network import NetworkOptions


class MatrixCross(nn.Module):
    """Cross layers with a matrix each: ``x_{l+1} = x_0 * (W_l x_l + b_l) + x_l`` (eq. 1 of the paper)."""

    def __init__(self, width: int, layers: int, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        weight = torch.empty(layers, width, width)
        self.weight = nn.Parameter(  # [L, n, n], out before in
            glorot_normal_(weight, fan_in=width, fan_out=width, generator=generator)
        )
        self.bias = nn.Parameter(torch.zeros(layers, width))  # [L, n]

    def forward(self, x0: Tensor) -> Tensor:
        """Map ``[B, n]`` to ``[B, n]``."""
        x = x0
        for weight, bias in zip(self.weight.unbind(), self.bias.unbind(), strict=True):
            x = torch.addcmul(x, x0, functional.linear(x, weight, bias))  # [B, n]
        return x


class DCNv2(CrossAndDeep):
    """:class:`CrossAndDeep` with full-rank :class:`MatrixCross` layers."""

    cross: MatrixCross

    def __init__(self, options: NetworkOptions, *, generator: torch.Generator | None = None) -> None:
        cross = MatrixCross(options.input_width, options.cross_layers, generator=generator)
        super().__init__(options, cross=cross, generator=generator)

    def cross_weights(self) -> list[nn.Parameter]:
        """Give the matrices ``W_l``."""
        return [self.cross.weight]
