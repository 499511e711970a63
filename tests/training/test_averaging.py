"""The running mean of the weights."""

from __future__ import annotations

from contextlib import suppress

import torch

from stampede.training.averaging import WeightAverage


def test_it_follows_its_formula() -> None:
    model = torch.nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(1.0)
    average = WeightAverage(model, decay=0.5)
    mean = 1.0

    for step, value in enumerate((3.0, -2.0, 8.0, 0.5), 1):
        model.weight.data.fill_(value)
        average.update()
        decay = min(0.5, (1 + step) / (10 + step))
        mean = decay * mean + (1 - decay) * value

    with average.applied():
        assert model.weight.item() == torch.tensor(mean).item()
    assert model.weight.item() == 0.5


def test_the_weights_come_back_after_an_error() -> None:
    model = torch.nn.Linear(2, 2)
    average = WeightAverage(model, decay=0.9)
    model.weight.data.add_(1)
    weight = model.weight.data.clone()

    with suppress(RuntimeError), average.applied():
        raise RuntimeError

    assert torch.equal(model.weight, weight)
