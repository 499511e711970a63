"""A run's model as plain torch operations, which exporters can trace: from ids to scores.

The lookup kernel of training is left out for torch's own; the network's other kernels have plain paths that
they take while they are traced.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn import functional

from stampede.pipeline.dataset import UNSEEN_ID
from stampede.training.models import CTRModel

TRACED_ROWS = 3  # any number but 0 and 1, which a tracer takes for constants


class ScoreGraph(nn.Module):
    """Scores of rows: ``forward(dense [B, n_dense] float32, ids [B, F] int64) -> [B] float32``.

    An id below 0 or not below its field's size is read as the id of unseen values.
    """

    sizes: Tensor
    starts: Tensor

    def __init__(self, model: CTRModel) -> None:
        super().__init__()
        self.register_buffer("sizes", torch.tensor(model.embedding.sizes))  # int64 [F]
        self.register_buffer("starts", model.embedding.starts[:-1].clone())  # int64 [F]
        self.table = model.embedding.weight
        self.first_order = None if model.first_order is None else model.first_order.weight
        self.network = model.network

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        """Compute the probabilities of a click, ``[B]``."""
        known = torch.where((ids >= 0) & (ids < self.sizes), ids, UNSEEN_ID)
        rows = known + self.starts  # [B, F]
        embeddings = functional.embedding(rows, self.table)  # [B, F, d]
        if self.first_order is None:
            first_order = embeddings.new_zeros(rows.shape[0])
        else:
            first_order = functional.embedding(rows, self.first_order).sum((1, 2))
        logits: Tensor = self.network(dense, embeddings, first_order)
        return torch.sigmoid(logits)


class ScoreGraphOfIds(nn.Module):
    """The same of a model without dense features: ``forward(ids [B, F]) -> [B]``."""

    def __init__(self, model: CTRModel) -> None:
        super().__init__()
        self.whole = ScoreGraph(model)

    def forward(self, ids: Tensor) -> Tensor:
        """Compute the probabilities of a click, ``[B]``."""
        scores: Tensor = self.whole(ids.new_zeros((ids.shape[0], 0), dtype=torch.float32), ids)
        return scores


def traced(model: CTRModel, *, n_dense: int) -> ExportedProgram:
    """Trace a model, on the CPU and in its evaluation mode, for batches of any size.

    Its inputs are ``dense``, where the model has dense features, and ``ids``.
    """
    batch = Dim("batch")
    ids = torch.full((TRACED_ROWS, len(model.embedding.sizes)), UNSEEN_ID)
    graph: nn.Module
    inputs: tuple[Tensor, ...]
    if n_dense:
        graph, inputs = ScoreGraph(model), (torch.zeros(TRACED_ROWS, n_dense), ids)
    else:
        graph, inputs = ScoreGraphOfIds(model), (ids,)
    with torch.no_grad():
        program = torch.export.export(
            graph.eval().requires_grad_(requires_grad=False),
            inputs,
            dynamic_shapes=tuple({0: batch} for _ in inputs),
        )
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths of this machine
    return program
