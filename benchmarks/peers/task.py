"""What every contender gets: the rows, the initial weights and the values of the run, through files.

Imported by the interpreters of both environments: numpy alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

FIELDS, N_DENSE = 26, 13
EMBEDDING_DIM = 10
HIDDEN = (400, 400, 400)
INIT_STD = 1e-2
AGREE_ROWS = 1024
"""Rows whose loss, before any training, all contenders must agree on."""


class UnavailableError(Exception):
    """There is no such contender, or it cannot do this task; the message says why."""


@dataclass(frozen=True)
class Rows:
    """Rows of a log: ids int32 [N, F] (of each field from 0), dense float32 [N, n_dense], labels int8 [N]."""

    ids: NDArray[np.int32]
    dense: NDArray[np.float32]
    labels: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: slice) -> Rows:
        return Rows(self.ids[rows], self.dense[rows], self.labels[rows])

    @classmethod
    def planted(cls, count: int, sizes: Sequence[int]) -> Self:
        """Draw rows with the long tail of click logs: the k-th id is about 1/k as frequent as the first."""
        random = np.random.default_rng(0)
        uniform = random.random((count, len(sizes)))
        return cls(
            (np.asarray(sizes) ** uniform).astype(np.int32) - 1,
            random.random((count, N_DENSE), np.float32),
            random.integers(0, 2, count, np.int8),
        )

    def save(self, folder: Path, name: str) -> None:
        """Write the three arrays."""
        for kind in ("ids", "dense", "labels"):
            np.save(folder / f"{name}_{kind}.npy", getattr(self, kind))

    @classmethod
    def load(cls, folder: Path, name: str) -> Self:
        """Read them into memory."""
        return cls(*(np.load(folder / f"{name}_{kind}.npy") for kind in ("ids", "dense", "labels")))


@dataclass(frozen=True)
class Weights:
    """The initial weights of the DeepFM, tables of all fields one below the other.

    embedding [R, d], first_order [R], dense [n_dense], and (weight [out, in], bias [out]) of each layer of
    the MLP, the output layer included.
    """

    embedding: NDArray[np.float32]
    first_order: NDArray[np.float32]
    dense: NDArray[np.float32]
    layers: list[tuple[NDArray[np.float32], NDArray[np.float32]]]

    @classmethod
    def draw(cls, sizes: Sequence[int]) -> Self:
        """Draw small tables, and layers whose outputs are about as large as their inputs."""
        random = np.random.default_rng(1)

        def normal(std: float, *shape: int) -> NDArray[np.float32]:
            return random.standard_normal(shape, np.float32) * np.float32(std)

        widths = [len(sizes) * EMBEDDING_DIM + N_DENSE, *HIDDEN, 1]
        return cls(
            embedding=normal(INIT_STD, sum(sizes), EMBEDDING_DIM),
            first_order=normal(INIT_STD, sum(sizes)),
            dense=normal(INIT_STD, N_DENSE),
            layers=[
                (normal((2 / (before + after)) ** 0.5, after, before), np.zeros(after, np.float32))
                for before, after in pairwise(widths)
            ],
        )

    def by_field(self, sizes: Sequence[int]) -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
        """Give the rows of each field: vectors [n, d] and first-order weights [n, 1]."""
        bounds = np.cumsum(sizes)[:-1]
        return list(
            zip(np.split(self.embedding, bounds), np.split(self.first_order[:, None], bounds), strict=True)
        )


@dataclass(frozen=True)
class Values:
    """The values of a run, the same for all: one rate for all weights, and ``l2 * sum(w^2)`` on tables."""

    sizes: list[int]
    batch_size: int
    threads: int
    learning_rate: float
    l2: float
    dataset: str | None = None
    """The rows as a Stampede dataset, for ``fit``."""


@dataclass(frozen=True)
class Task:
    """Rows, initial weights and values."""

    rows: Rows
    weights: Weights
    values: Values

    def save(self, folder: Path) -> None:
        """Write all but the rows (:meth:`Rows.save`), which several tasks can share."""
        (folder / f"values_{self.values.batch_size}.json").write_text(json.dumps(asdict(self.values)))

    @classmethod
    def load(cls, folder: Path, batch_size: int) -> Self:
        """Read what was written."""
        values = Values(**json.loads((folder / f"values_{batch_size}.json").read_text()))
        return cls(Rows.load(folder, "train"), Weights.draw(values.sizes), values)


class Contender(Protocol):
    """One way to train the model.

    Making one brings the rows into the form that its step takes, in memory; :meth:`build` makes the model.
    """

    updates: str
    """Which rows of the tables a step updates."""

    def build(self) -> None:
        """Make the model with the task's initial weights, and its optimizer."""

    def step(self, rows: slice) -> Any:
        """Take one training step on these rows of the task."""

    def fit(self, folder: Path) -> float:
        """Train one epoch the way its users do, its data pipeline included; return the seconds of it."""

    def scores(self, rows: Rows) -> NDArray[np.float64]:
        """Give the predicted probabilities of other rows."""
