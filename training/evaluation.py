"""A model over rows in order: its logits, and the exact metrics of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from stampede.training.batch import Batch
from stampede.training.metrics import Evaluation, Metrics

EVALUATION_BATCH = 16_384
"""Rows a batch: one size everywhere, since the last digits of a logit may depend on it."""


@torch.no_grad()
def logits_of(model: nn.Module, batches: Iterable[Batch]) -> Iterator[tuple[Tensor, Batch]]:
    """Yield the logits ``[B]`` of each batch, and the batch, with the model in its evaluation mode."""
    was_training = model.training
    model.eval()
    try:
        for batch in batches:
            yield model(batch.dense, batch.ids), batch
    finally:
        model.train(was_training)


def evaluate(model: nn.Module, batches: Iterable[Batch]) -> Metrics:
    """Evaluate a model over all rows of some batches, exactly."""
    evaluation = Evaluation()
    for logits, batch in logits_of(model, batches):
        evaluation.update(logits, batch.labels)
    return evaluation.result()
