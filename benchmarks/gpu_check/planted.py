"""Synthetic Criteo rows on the device, with a logistic law that a model can find."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from benchmarks.gpu_check.model import N_DENSE, long_tailed_ids
from torch import Tensor

from stampede.training.batch import Batch

ROW_BYTES = 4 * 26 + 4 * N_DENSE + 1
_ROWS_AT_A_TIME = 1 << 19


@dataclass(frozen=True)
class Law:
    """How clicks follow from rows: a weight per id, products of ids' factors, and the dense features.

    ``logit = bias + sum_f w[f, id] + sum_{f < g} <v[f, id], v[g, id]> + dense @ u``
    """

    weights: Tensor  # [rows of all fields]
    factors: Tensor  # [rows of all fields, 2]
    dense_weights: Tensor  # [n_dense]
    starts: Tensor  # int64 [F]
    bias: float = -1.3

    @classmethod
    def drawn(cls, sizes: tuple[int, ...], *, device: torch.device, seed: int = 7) -> Law:
        """Draw a law: about a quarter of rows are clicks."""
        draw = torch.Generator(device).manual_seed(seed)
        total = sum(sizes)
        starts = torch.tensor(sizes, device=device).cumsum(0).roll(1)
        starts[0] = 0
        return cls(
            torch.randn(total, generator=draw, device=device).mul_(0.2),
            torch.randn(total, 2, generator=draw, device=device).mul_(0.14),
            torch.randn(N_DENSE, generator=draw, device=device),
            starts,
        )

    def logits(self, dense: Tensor, ids: Tensor) -> Tensor:
        """Compute ``[B]``."""
        rows = ids + self.starts
        factors = self.factors[rows]  # [B, F, 2]
        pairs = (factors.sum(1).square() - factors.square().sum(1)).sum(1) / 2
        return self.bias + self.weights[rows].sum(1) + pairs + (dense - 0.5) @ self.dense_weights


def planted_rows(rows: int, sizes: tuple[int, ...], law: Law, *, seed: int) -> tuple[Batch, Tensor]:
    """Draw rows, and the logits that their labels were drawn from."""
    device = law.weights.device
    draw = torch.Generator(device).manual_seed(seed)
    bounds = torch.tensor(sizes, device=device)
    data = Batch.empty(rows, n_dense=N_DENSE, n_fields=len(sizes), device=device)
    logits = torch.empty(rows, device=device)
    for start in range(0, rows, _ROWS_AT_A_TIME):
        piece = data[start : start + _ROWS_AT_A_TIME]
        piece.ids.copy_(long_tailed_ids(len(piece), bounds, generator=draw))
        piece.dense.copy_(torch.rand(piece.dense.shape, generator=draw, device=device))
        truth = law.logits(piece.dense, piece.ids)
        clicked = torch.rand(len(piece), generator=draw, device=device) < truth.sigmoid()
        piece.labels.copy_(clicked)
        logits[start : start + len(piece)] = truth
    return data, logits
