"""FuxiCTR 2.3.10, in its own environment.

Its package has the layers and ``BaseModel.train_step``, which is the step timed here; its DeepFM is an
example outside the package, so it is put together here from the same layers. What differs from the example,
to have the model of the others: dense features go straight to the MLP and to the linear part, instead of
becoming 13 more fields. What differs from the others: each field has a table of vectors and one of single
weights; L2 is a norm of each table in the loss; the step clips the norm of all gradients at 10, which it
never reaches; the linear part has a bias of its own. Dropout, batch norm and the regulariser of the net are
off.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.peers.task import EMBEDDING_DIM, HIDDEN, N_DENSE, Rows, Task
from fuxictr.features import FeatureMap
from fuxictr.pytorch.dataloaders.npz_dataloader import NpzDataLoader
from fuxictr.pytorch.layers import FactorizationMachine, FeatureEmbedding, MLP_Block
from fuxictr.pytorch.models import BaseModel
from numpy.typing import NDArray
from torch import Tensor, nn

MAX_GRADIENT_NORM = 10.0
"""Of its ``fit``, which sets it on the model."""


class Fuxi:
    """FuxiCTR; ``fused`` replaces its optimizer by torch's fused Adam, ``default`` keeps its "adam"."""

    updates = "every"

    def __init__(self, task: Task, variant: str) -> None:
        self.task = task
        self.variant = variant
        self.columns = _columns(task.rows)

    def build(self) -> None:
        """Make the model and its optimizer."""
        values = self.task.values
        self.model = _DeepFM(values.sizes, learning_rate=values.learning_rate, l2=values.l2)
        self._take_weights()
        if self.variant == "fused":
            self.model.optimizer = torch.optim.Adam(
                self.model.parameters(), lr=values.learning_rate, fused=True
            )
        self.model.train()

    def step(self, rows: slice) -> None:
        """Take one step by its ``train_step``."""
        self.model.train_step({name: column[rows] for name, column in self.columns.items()})

    def fit(self, folder: Path) -> float:
        """Train by its ``fit`` and its loader of npz files, which has one process; validate on one batch."""
        model, size = self.model, self.task.values.batch_size
        model.checkpoint = str(folder / "fuxictr.model")
        loaders = []
        for name, rows in (("train", self.task.rows), ("valid", self.task.rows[:size])):
            arrays: dict[str, Any] = {key: column.numpy() for key, column in _columns(rows).items()}
            np.savez(folder / f"{name}.npz", **arrays)
            loaders.append(NpzDataLoader(model.feature_map, str(folder / f"{name}.npz"), batch_size=size))
        started = time.perf_counter()
        model.fit(loaders[0], epochs=1, validation_data=loaders[1], max_gradient_norm=MAX_GRADIENT_NORM)
        return time.perf_counter() - started

    @torch.no_grad()
    def scores(self, rows: Rows) -> NDArray[np.float64]:
        """Give the probabilities."""
        self.model.eval()
        scores: NDArray[np.float64] = self.model(_columns(rows))["y_pred"].double().view(-1).numpy()
        self.model.train()
        return scores

    @torch.no_grad()
    def _take_weights(self) -> None:
        model, weights = self.model, self.task.weights
        vector_tables = model.embedding_layer.embedding_layer.embedding_layers
        single_tables = model.fm.lr_layer.embedding_layer.embedding_layer.embedding_layers
        for i, (vectors, singles) in enumerate(weights.by_field(self.task.values.sizes), 1):
            vector_tables[f"C{i}"].weight.copy_(torch.from_numpy(vectors))
            single_tables[f"C{i}"].weight.copy_(torch.from_numpy(singles))
        model.dense_linear.weight.copy_(torch.from_numpy(weights.dense)[None])
        linears = [layer for layer in model.mlp.mlp if isinstance(layer, nn.Linear)]
        for layer, (weight, bias) in zip(linears, weights.layers, strict=True):
            layer.weight.copy_(torch.from_numpy(weight))
            layer.bias.copy_(torch.from_numpy(bias))


class _DeepFM(BaseModel):  # type: ignore[misc]
    def __init__(self, sizes: list[int], *, learning_rate: float, l2: float) -> None:
        fields = {
            f"C{i}": {"source": "", "type": "categorical", "vocab_size": size}
            for i, size in enumerate(sizes, 1)
        }
        # its name for several numbers that come as they are, in as many columns
        dense = {"dense": {"source": "", "type": "embedding", "pretrain_dim": N_DENSE}}
        super().__init__(
            _feature_map({**fields, **dense}),
            model_id="DeepFM",
            embedding_regularizer=f"l2({2 * l2})",  # it halves
            net_regularizer=None,
            verbose=0,
            model_root="",
            metrics=["AUC"],
        )
        categorical = _feature_map(fields)
        self.embedding_layer = FeatureEmbedding(categorical, EMBEDDING_DIM)
        self.fm = FactorizationMachine(categorical)
        self.dense_linear = nn.Linear(N_DENSE, 1, bias=False)
        self.mlp = MLP_Block(
            input_dim=len(sizes) * EMBEDDING_DIM + N_DENSE, output_dim=1, hidden_units=list(HIDDEN)
        )
        self._max_gradient_norm = MAX_GRADIENT_NORM
        self.compile("adam", "binary_crossentropy", learning_rate)

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Compute the probabilities, as the example does."""
        features = self.get_inputs(inputs)
        dense = features.pop("dense").float()
        embeddings = self.embedding_layer(features)  # [B, F, d]
        logits = self.fm(features, embeddings)
        logits += self.dense_linear(dense)
        logits += self.mlp(torch.cat([embeddings.flatten(start_dim=1), dense], 1))
        return {"y_pred": self.output_activation(logits)}


def _feature_map(features: dict[str, dict[str, object]]) -> FeatureMap:
    feature_map = FeatureMap("peers", "")
    feature_map.features = OrderedDict(features)
    feature_map.labels = ["label"]
    feature_map.num_fields = feature_map.get_num_fields()
    feature_map.set_column_index()
    return feature_map


def _columns(rows: Rows) -> dict[str, Tensor]:
    ids = torch.from_numpy(rows.ids).long()
    columns = {f"C{i}": column.contiguous() for i, column in enumerate(ids.unbind(1), 1)}
    return {**columns, "dense": torch.from_numpy(rows.dense), "label": torch.from_numpy(rows.labels).float()}
