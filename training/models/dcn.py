"""Deep & Cross Network (Wang et al., arXiv 1708.05123)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stampede.training.models.cross_deep import CrossAndDeep
from stampede.training.models.layers import glorot_normal_
from stampede.training.models.network import NetworkOptions


class VectorCross(nn.Module):
    """Cross layers with a vector each: ``x_{l+1} = x_0 (w_l . x_l) + b_l + x_l`` (eq. 3 of the paper)."""

    def __init__(self, width: int, layers: int, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        weight = glorot_normal_(torch.empty(layers, width), fan_in=width, fan_out=1, generator=generator)
        self.weight = nn.Parameter(weight)  # [L, n]
        self.bias = nn.Parameter(torch.zeros(layers, width))  # [L, n]

    def forward(self, x0: Tensor) -> Tensor:
        """Map ``[B, n]`` to ``[B, n]``."""
        x = x0
        for weight, bias in zip(self.weight.unbind(), self.bias.unbind(), strict=True):
            x = x0 * (x @ weight).unsqueeze(1) + bias + x  # [B, n]
        return x


class DCN(CrossAndDeep):
    """:class:`CrossAndDeep` with :class:`VectorCross` layers."""

    cross: VectorCross

    def __init__(self, options: NetworkOptions, *, generator: torch.Generator | None = None) -> None:
        cross = VectorCross(options.input_width, options.cross_layers, generator=generator)
        super().__init__(options, cross=cross, generator=generator)

    def cross_weights(self) -> list[nn.Parameter]:
        """Give the vectors ``w_l``."""
        return [self.cross.weight]
