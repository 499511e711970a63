"""Compiles the kernels of a training step ahead of it, where they are not on disk yet."""

from __future__ import annotations

from typing import Any

import torch

from stampede.kernels.accumulate import make_accumulator
from stampede.kernels.lookup import lookup
from stampede.kernels.mlp import mlp
from stampede.kernels.pairwise import pairwise_sum
from stampede.kernels.update import update_entries, update_table, update_values


def warm_up() -> None:
    """Run each kernel once on a few values of float32: seconds where they must be compiled."""
    ids, table, linear = torch.zeros(1, 1, dtype=torch.int32), torch.zeros(1, 1), torch.zeros(1, 1)
    lookup(table, linear, ids, offsets=torch.tensor([0, 1]))
    accumulator = make_accumulator([1], 1, batch_rows=1, linear=True)
    accumulator.add(ids, torch.zeros(1, 1, 1), torch.zeros(1))
    gradients, _ = accumulator.finish()
    state: dict[str, Any] = {"exp_avg": torch.zeros(1, 1), "exp_avg_sq": torch.zeros(1, 1)}
    update_table(table, gradients, rate=0.0, clip=(1.0, 0.0), **state)
    update_entries(table, gradients, rate=0.0, clip=(1.0, 0.0), **state)
    update_values(table, torch.zeros(1, 1), rate=0.0, **state)
    accumulator.clear()
    values = torch.zeros(1, 1, 1, requires_grad=True)
    layer = (torch.zeros(1, 1, requires_grad=True), torch.zeros(1, requires_grad=True))
    with torch.enable_grad():
        result = pairwise_sum(values).sum() + mlp(values.flatten(1), [layer[0]], [layer[1]]).sum()
        torch.autograd.backward(result)
