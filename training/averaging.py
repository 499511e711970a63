"""A running mean of the weights over late steps, which is what gets evaluated and kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightAverage:
    """Exponential moving average of a model's weights (Polyak and Juditsky 1992).

    ``mean <- d_k * mean + (1 - d_k) * w`` after step k = 1, 2, …, with
    ``d_k = min(decay, (1 + k) / (10 + k))``, so that the first weights are soon forgotten. On small data it
    takes away the noise of the last steps, which costs more there than a better minimum gains.

    Parameters
    ----------
    model:
        Its parameters are averaged, in their own dtype and on their device: one more copy of them in memory.
    decay:
        In [0, 1); 0.99 averages over about a hundred steps.
    """

    def __init__(self, model: nn.Module, *, decay: float) -> None:
        self._parameters = dict(model.named_parameters())
        self._means = {name: weight.detach().clone() for name, weight in self._parameters.items()}
        self._decay = decay
        self._steps = 0

    @property
    def steps(self) -> int:
        """How many steps the mean has taken in."""
        return self._steps

    @torch.no_grad()
    def restore(self, *, steps: int) -> None:
        """Go on from the mean after ``steps`` steps, which the model holds now."""
        self._steps = steps
        for name, mean in self._means.items():
            mean.copy_(self._parameters[name])

    @torch.no_grad()
    def update(self) -> None:
        """Take the weights after a step into the mean."""
        self._steps += 1
        decay = min(self._decay, (1 + self._steps) / (10 + self._steps))
        for name, mean in self._means.items():
            mean.lerp_(self._parameters[name], 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[dict[str, Tensor]]:
        """Let the model have the mean while the block runs; gives the weights that it trains with."""
        self._swap()
        try:
            yield self._means
        finally:
            self._swap()

    def _swap(self) -> None:
        for name, weight in self._parameters.items():
            weight.data, self._means[name] = self._means[name], weight.data
