"""The batches and tables that the kernels are checked with on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import accumulate as running_sums
from typing import Any

import torch
from torch import Tensor

from stampede.kernels.cuda.accumulate import CudaRowAccumulator

_SAMPLE_ROWS = 1_000_000  # of a table, about: compared are the first, the last, and rows between at a stride


@dataclass(frozen=True)
class Shape:
    """A batch and its tables.

    Attributes
    ----------
    hot:
        Share of the occurrences that have their field's first id.
    """

    batch: int
    sizes: tuple[int, ...]
    dim: int
    hot: float = 0.0

    def __str__(self) -> str:
        """Say it in a line."""
        hot = f", {self.hot:.0%} hot" if self.hot else ""
        return f"batch {self.batch:,}, {len(self.sizes)} fields, {sum(self.sizes):,} rows, d={self.dim}{hot}"

    @property
    def bytes(self) -> int:
        """About the memory that its checks take."""
        table, occurrences = sum(self.sizes) * self.dim * 4, self.batch * len(self.sizes)
        compared = min(sum(self.sizes), 2 * _SAMPLE_ROWS) * self.dim
        return 7 * table + 100 * compared + occurrences * (6 * self.dim * 4 + 60)


SHAPES = (
    Shape(1_024, (40_000,) * 26, 16),
    Shape(8_192, (40_000,) * 26, 10),
    Shape(131_072, (40_000,) * 26, 16),
    Shape(131_072, (40_000,) * 26, 16, hot=0.9),
    Shape(131_072, (500_000,), 10, hot=1.0),
    Shape(131_072, (40_000,) * 26, 9, hot=0.5),
    Shape(65_536, (20_000,) * 24, 128, hot=0.3),
    Shape(4_099, (77, 5, 100_003), 1, hot=0.5),
    Shape(4_099, (77, 5, 100_003), 33, hot=0.5),
    Shape(65_536, (6_000_000,) * 24, 16),  # rows * d past 2^31: 64-bit offsets
)
"""What is checked, where the device has the memory."""


class Case:
    """The tensors of a shape."""

    def __init__(self, shape: Shape, device: torch.device) -> None:
        draw = torch.Generator(device).manual_seed(sum(shape.sizes) + shape.batch + shape.dim)
        random = partial(torch.randn, generator=draw, device=device)
        self.shape, self.device = shape, device
        self.num_rows, self.fields = sum(shape.sizes), len(shape.sizes)
        self.offsets = torch.tensor([0, *running_sums(shape.sizes)], device=device)
        self.weights = random(self.num_rows, shape.dim).mul_(1e-2)
        self.linear = random(self.num_rows, 1).mul_(1e-2)
        self.batches = [self._ids(draw) for _ in range(2)]
        self.ids = self.batches[0].clone()
        self.grads = random(shape.batch, self.fields, shape.dim)
        self.linear_grads = random(shape.batch)
        self.exp_avg = random(self.num_rows, shape.dim).mul_(1e-3)
        self.exp_avg_sq = torch.full_like(self.exp_avg, 1e-6)
        stride = max(1, self.num_rows // _SAMPLE_ROWS)
        self.sample = torch.arange(0, self.num_rows, stride, device=device)
        self.sample[-1] = self.num_rows - 1

    def _ids(self, draw: torch.Generator) -> Tensor:
        shape = (self.shape.batch, self.fields)
        sizes = torch.tensor(self.shape.sizes, device=self.device)
        # Squares of uniform numbers: small ids are frequent, as in a vocabulary sorted by count.
        ids = (torch.rand(shape, generator=draw, device=self.device).square() * sizes).to(torch.int32)
        hot = torch.rand(shape, generator=draw, device=self.device) < self.shape.hot
        return torch.minimum(ids.masked_fill(hot, 0), (sizes - 1).to(torch.int32))

    @property
    def rows(self) -> Tensor:
        """Row of each occurrence, int64 ``[B * F]``."""
        return (self.ids + self.offsets[:-1]).reshape(-1)

    def accumulator(self) -> CudaRowAccumulator:
        """Make an accumulator for the shape."""
        shape = self.shape
        return CudaRowAccumulator(
            shape.sizes, shape.dim, batch_rows=shape.batch, linear=True, device=self.device
        )

    def state(self, rows: Tensor | None = None) -> dict[str, Any]:
        """Give the table and its means; with ``rows``, copies of those rows in float64."""
        tables = {"weights": self.weights, "exp_avg": self.exp_avg, "exp_avg_sq": self.exp_avg_sq}
        return tables if rows is None else {name: table[rows].double() for name, table in tables.items()}
