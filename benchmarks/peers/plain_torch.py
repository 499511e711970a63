"""Plain torch, written well: the same DeepFM in three layouts of its tables.

The vector of an id and its first-order weight lie side by side, so that one lookup and one update serve both.
L2 is Adam's ``weight_decay``, which costs no pass of its own. SparseAdam has none: there, tables have no L2.
"""

from __future__ import annotations

import time
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from benchmarks.peers.task import EMBEDDING_DIM, HIDDEN, N_DENSE, Rows, Task
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

Layout = Literal["sparse", "fused", "fields"]


class PlainTorch:
    """A hand-written loop.

    ``sparse``: one table of all fields, nn.Embedding(sparse=True), SparseAdam; the rest by fused Adam.
    ``fused``: one table, and fused Adam over everything.
    ``fields``: an nn.Embedding a field, and fused Adam over everything.
    """

    def __init__(self, task: Task, layout: Layout) -> None:
        self.task = task
        self.layout = layout
        self.updates = "touched" if layout == "sparse" else "every"
        self.ids, self.dense, self.labels = self._hold(task.rows)

    def build(self) -> None:
        """Make the model and its optimizers."""
        values = self.task.values
        sizes = values.sizes if self.layout == "fields" else [sum(values.sizes)]
        self.model = _DeepFM(sizes, n_fields=len(values.sizes), sparse=self.layout == "sparse")
        self._take_weights()
        tables = list(self.model.tables.parameters())
        others = [
            parameter for name, parameter in self.model.named_parameters() if not name.startswith("tables.")
        ]
        rate = values.learning_rate
        self.optimizers: list[torch.optim.Optimizer]
        if self.layout == "sparse":
            self.optimizers = [
                torch.optim.SparseAdam(tables, lr=rate),
                torch.optim.Adam(others, lr=rate, fused=True),
            ]
        else:
            groups: list[dict[str, Any]] = [
                {"params": tables, "weight_decay": 2 * values.l2},
                {"params": others},
            ]
            self.optimizers = [torch.optim.Adam(groups, lr=rate, fused=True)]

    def step(self, rows: slice) -> None:
        """Take one step."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        logits = self.model([ids[rows] for ids in self.ids], self.dense[rows])
        loss = functional.binary_cross_entropy_with_logits(logits, self.labels[rows])
        torch.autograd.backward(loss)
        for optimizer in self.optimizers:
            optimizer.step()

    def fit(self, folder: Path) -> float:
        """Step through the rows: a plain loop has its data in memory."""
        started = time.perf_counter()
        for start in range(0, len(self.labels), self.task.values.batch_size):
            self.step(slice(start, start + self.task.values.batch_size))
        return time.perf_counter() - started

    @torch.no_grad()
    def scores(self, rows: Rows) -> NDArray[np.float64]:
        """Give the probabilities."""
        ids, dense, _ = self._hold(rows)
        scores: NDArray[np.float64] = self.model(ids, dense).double().sigmoid().numpy()
        return scores

    def _hold(self, rows: Rows) -> tuple[list[Tensor], Tensor, Tensor]:
        """Give ids int64 as the lookups take them, [N, F] of one table or [N] of each, dense and labels."""
        ids = torch.from_numpy(rows.ids).long()
        if self.layout == "fields":
            columns = [column.contiguous() for column in ids.unbind(1)]
        else:
            starts = [0, *accumulate(self.task.values.sizes)][:-1]
            columns = [ids + torch.tensor(starts)]
        return columns, torch.from_numpy(rows.dense), torch.from_numpy(rows.labels).float()

    @torch.no_grad()
    def _take_weights(self) -> None:
        weights = self.task.weights
        start = 0
        for table in self.model.tables:
            assert isinstance(table, nn.Embedding)
            stop = start + table.num_embeddings
            table.weight[:, :EMBEDDING_DIM] = torch.from_numpy(weights.embedding[start:stop])
            table.weight[:, EMBEDDING_DIM] = torch.from_numpy(weights.first_order[start:stop])
            start = stop
        self.model.dense_weight.copy_(torch.from_numpy(weights.dense))
        linears = [layer for layer in self.model.mlp if isinstance(layer, nn.Linear)]
        for layer, (weight, bias) in zip(linears, weights.layers, strict=True):
            layer.weight.copy_(torch.from_numpy(weight))
            layer.bias.copy_(torch.from_numpy(bias))


class _DeepFM(nn.Module):
    """``forward(ids: one [B, F] or F of [B], dense [B, n_dense]) -> logits [B]``."""

    def __init__(self, sizes: list[int], *, n_fields: int, sparse: bool) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, EMBEDDING_DIM + 1, sparse=sparse) for size in sizes)
        self.dense_weight = nn.Parameter(torch.empty(N_DENSE))
        layers: list[nn.Module] = []
        for before, after in pairwise([n_fields * EMBEDDING_DIM + N_DENSE, *HIDDEN]):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.mlp = nn.Sequential(*layers, nn.Linear(HIDDEN[-1], 1))

    def forward(self, ids: list[Tensor], dense: Tensor) -> Tensor:
        looked_up = [table(column) for table, column in zip(self.tables, ids, strict=True)]
        values = looked_up[0] if len(looked_up) == 1 else torch.stack(looked_up, 1)  # [B, F, d + 1]
        embeddings = values[..., :EMBEDDING_DIM]
        first_order = values[..., EMBEDDING_DIM].sum(1) + dense @ self.dense_weight
        pairs = 0.5 * (embeddings.sum(1).square().sum(1) - embeddings.square().sum((1, 2)))
        deep: Tensor = self.mlp(torch.cat([embeddings.flatten(1), dense], 1)).squeeze(1)
        return first_order + pairs + deep
