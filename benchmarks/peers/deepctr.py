"""DeepCTR-Torch 0.3.0, in its own environment.

Its ``fit`` is one long loop; a step here is the body of that loop without the progress bar and the two
``.item()`` of its log. What differs from the others: the loss is a sum over the batch, so that its L2 is
given times the batch size; ids come as float32 columns of one matrix; each field has a table of vectors and
one of single weights; the L2 of its linear part is on the 13 dense weights too. Dropout and batch norm are
off, as by default.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import requests
import torch
from benchmarks.peers.task import EMBEDDING_DIM, HIDDEN, INIT_STD, N_DENSE, Rows, Task, UnavailableError
from numpy.typing import NDArray
from torch import Tensor


def _stay_offline(*_: Any, **__: Any) -> NoReturn:
    raise ConnectionError


requests.get = _stay_offline  # the import asks PyPI for the newest version

from deepctr_torch.inputs import DenseFeat, SparseFeat  # noqa: E402
from deepctr_torch.models import DeepFM  # noqa: E402

PREDICTION_BATCH = 8192


class DeepCTR:
    """DeepCTR-Torch; ``fused`` gives its ``compile`` torch's fused Adam, ``default`` the name "adam"."""

    updates = "every"

    def __init__(self, task: Task, variant: str) -> None:
        if max(task.values.sizes) > 1 << 24:
            raise UnavailableError("ids above 2^24 are not exact in float32, as DeepCTR-Torch takes them")
        self.task = task
        self.variant = variant
        columns = [task.rows.ids.astype(np.float32), task.rows.dense]
        self.inputs = torch.from_numpy(np.concatenate(columns, 1))  # [N, F + n_dense]
        self.labels = torch.from_numpy(task.rows.labels.astype(np.float32))

    def build(self) -> None:
        """Make the model and its optimizer."""
        values = self.task.values
        features = [
            *(SparseFeat(f"C{i}", size, EMBEDDING_DIM) for i, size in enumerate(values.sizes, 1)),
            DenseFeat("dense", N_DENSE),  # one feature of 13 values: fewer slices than 13 features
        ]
        l2 = values.l2 * values.batch_size
        self.model = DeepFM(
            features,
            features,
            dnn_hidden_units=HIDDEN,
            l2_reg_linear=l2,
            l2_reg_embedding=l2,
            init_std=INIT_STD,
        )
        self._take_weights()
        optimizer: Any = "adam"  # of torch's default rate, 1e-3
        if self.variant == "fused":
            optimizer = torch.optim.Adam(self.model.parameters(), lr=values.learning_rate, fused=True)
        elif values.learning_rate != 1e-3:
            raise UnavailableError('DeepCTR-Torch\'s "adam" has the learning rate 1e-3')
        self.model.compile(optimizer, "binary_crossentropy")
        self.model.train()

    def step(self, rows: slice) -> None:
        """Take one step, as in the loop of its ``fit``."""
        model = self.model
        inputs, labels = self.inputs[rows], self.labels[rows]
        predictions = model(inputs).squeeze(-1)
        model.optim.zero_grad()
        loss = model.loss_func(predictions, labels, reduction="sum")
        total: Tensor = loss + model.get_regularization_loss() + model.aux_loss
        torch.autograd.backward(total)
        model.optim.step()

    def fit(self, folder: Path) -> float:
        """Train by its ``fit``, over float32 columns."""
        columns, labels = self._columns(self.task.rows), self.labels.numpy()
        started = time.perf_counter()
        self.model.fit(
            columns, labels, batch_size=self.task.values.batch_size, epochs=1, verbose=0, shuffle=False
        )
        return time.perf_counter() - started

    def scores(self, rows: Rows) -> NDArray[np.float64]:
        """Give the probabilities."""
        scores: NDArray[np.float64] = self.model.predict(self._columns(rows), PREDICTION_BATCH)[:, 0]
        return scores

    @staticmethod
    def _columns(rows: Rows) -> dict[str, NDArray[np.float32]]:
        columns = {f"C{i}": column for i, column in enumerate(rows.ids.T.astype(np.float32), 1)}
        return {**columns, "dense": rows.dense}

    @torch.no_grad()
    def _take_weights(self) -> None:
        model, weights = self.model, self.task.weights
        for i, (vectors, singles) in enumerate(weights.by_field(self.task.values.sizes), 1):
            model.embedding_dict[f"C{i}"].weight.copy_(torch.from_numpy(vectors))
            model.linear_model.embedding_dict[f"C{i}"].weight.copy_(torch.from_numpy(singles))
        model.linear_model.weight.copy_(torch.from_numpy(weights.dense)[:, None])
        *hidden, (output, output_bias) = weights.layers
        for layer, (weight, bias) in zip(model.dnn.linears, hidden, strict=True):
            layer.weight.copy_(torch.from_numpy(weight))
            layer.bias.copy_(torch.from_numpy(bias))
        model.dnn_linear.weight.copy_(torch.from_numpy(output))
        model.out.bias.copy_(torch.from_numpy(output_bias))
