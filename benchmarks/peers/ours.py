"""Stampede's side: its model, CowClip included, by the step that its trainer takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from benchmarks.peers.task import EMBEDDING_DIM, HIDDEN, INIT_STD, N_DENSE, Rows, Task
from numpy.typing import NDArray

from stampede.pipeline import Dataset
from stampede.training.batch import Batch
from stampede.training.build import model_of, optimizer_of
from stampede.training.config import TrainConfig
from stampede.training.models import CTRModel
from stampede.training.step import TrainStep
from stampede.training.trainer import Trainer


class Ours:
    """Stampede: ``dense`` updates every row, ``bf16`` too with bfloat16 products, ``touched`` the batch's."""

    def __init__(self, task: Task, variant: str) -> None:
        self.task = task
        self.updates = "touched" if variant == "touched" else "every"
        self.rows = _batch_of(task.rows)
        values = task.values
        self.config = TrainConfig(
            batch_size=values.batch_size,
            epochs=1,
            warmup_epochs=0,
            learning_rate=values.learning_rate,
            embedding_learning_rate=values.learning_rate,
            l2=values.l2,
            embedding_dim=EMBEDDING_DIM,
            init_std=INIT_STD,
            hidden=HIDDEN,
            device="cpu",
            threads=values.threads,
            precision="bf16" if variant == "bf16" else "float32",
            update="touched" if variant == "touched" else "dense",
        )

    def build(self) -> None:
        """Make the model and its optimizer."""
        sizes = {f"C{i}": size for i, size in enumerate(self.task.values.sizes, 1)}
        self.model = model_of(self.config, sizes, n_dense=N_DENSE)
        self._take_weights(self.model)
        self.take_step = TrainStep(
            self.model,
            optimizer_of(self.config, self.model),
            batch_size=self.config.batch_size,
            precision=self.config.precision,
        )

    def step(self, rows: slice) -> None:
        """Take one step."""
        self.take_step(self.rows[rows])

    def fit(self, folder: Path) -> float:
        """Train on the dataset by the trainer, which shuffles and logs; its evaluations are not counted."""
        assert self.task.values.dataset is not None
        dataset = Dataset.open(Path(self.task.values.dataset))
        run = folder / "run"
        run.mkdir()
        trainer = Trainer(self.config, dataset, device=torch.device("cpu"), run=run)
        self._take_weights(trainer.model)
        self.model = trainer.model
        return len(self.rows) / trainer.fit().samples_per_second

    @torch.no_grad()
    def scores(self, rows: Rows) -> NDArray[np.float64]:
        """Give the probabilities."""
        batch = _batch_of(rows)
        scores: NDArray[np.float64] = self.model(batch.dense, batch.ids).double().sigmoid().numpy()
        return scores

    @torch.no_grad()
    def _take_weights(self, model: CTRModel) -> None:
        weights = self.task.weights
        state = model.state_dict()
        given = {
            "embedding.weight": weights.embedding,
            "first_order.weight": weights.first_order[:, None],
            "network.dense_linear.weight": weights.dense,
        }
        names = [*(f"network.mlp.layers.{i}" for i in range(len(HIDDEN))), "network.output"]
        for name, (weight, bias) in zip(names, weights.layers, strict=True):
            given |= {f"{name}.weight": weight, f"{name}.bias": bias}
        assert set(given) == set(state)
        for name, array in given.items():
            state[name].copy_(torch.from_numpy(array))


def _batch_of(rows: Rows) -> Batch:
    return Batch(torch.from_numpy(rows.dense), torch.from_numpy(rows.ids), torch.from_numpy(rows.labels))
