"""What a step does to the tables: norms by field, and how far the clip acts on ids by their frequency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import polars as pl
import torch
from torch import Tensor

from stampede.kernels import RowGradients
from stampede.pipeline.dataset import Dataset
from stampede.training.models import CTRModel
from stampede.training.optim import Kind, TableOptimizer
from stampede.training.optim.clips import Clip, clip_table

FREQUENCY_BINS: Final = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536)
"""Where the bins of an id's count among the training rows begin; the last is open."""


@dataclass(frozen=True)
class TableStatistics:
    """Statistics of the rows that one batch has, before their update.

    Attributes
    ----------
    record:
        ``fields``: by name, ``rows`` of the batch (distinct ids), norms of their gradient with its L2 term
        before the clip and of the field's weights, how many the clip bounds; ``frequency``: the same rows by
        their count among the training rows, with the mean factor that the clip scales them by (1 where it
        leaves them alone), None without a clip; ``dense``: norms of the network's gradient and weights.
    factors, norms:
        ``[rows]``: the factor (empty without a clip) and the norm of the gradient of each row.
    """

    record: dict[str, Any]
    factors: Tensor
    norms: Tensor


class TableWatch:
    """Measures what a step does to the embedding table.

    Parameters
    ----------
    model, optimizer:
        Those that are trained.
    fields:
        Names of the fields.
    counts:
        Integers ``[rows]``: how often each id occurs among the training rows.
    """

    def __init__(
        self, model: CTRModel, optimizer: TableOptimizer, *, fields: Sequence[str], counts: Tensor
    ) -> None:
        self._model, self._optimizer, self._fields = model, optimizer, list(fields)
        table = model.embedding.weight
        bounds = torch.tensor(FREQUENCY_BINS[1:], device=counts.device)
        bins = torch.bucketize(counts, bounds, right=True)
        self._bin_of_row = bins.to(torch.uint8).to(table.device)  # a byte a row: tables may be large
        self._group = next(g for g in optimizer.param_groups if g["kind"] == Kind.EMBEDDING)

    @torch.no_grad()
    def measure(self, gradients: Mapping[Tensor, RowGradients]) -> TableStatistics:
        """Measure a batch whose gradients are there and not yet applied."""
        table = self._model.embedding.weight
        gradient = gradients[table]
        used = gradient.index.counts > 0
        rows = gradient.index.rows[used]  # [n]
        whole = gradient.sums[used] + 2 * self._group["l2"] * table[rows]  # [n, d]
        norms = whole.norm(dim=1)
        field_of = torch.bucketize(rows, self._model.embedding.starts[1:], right=True)
        factors = self._factors(gradients, rows, whole, gradient.index.counts[used], norms)
        clipped = None if factors is None else factors < 1
        number = len(self._fields)
        squares = torch.zeros(number, dtype=torch.float64, device=norms.device)
        squares.index_add_(0, field_of, norms.double().square())
        parts = torch.split(table, list(self._model.embedding.sizes))
        record: dict[str, Any] = {
            "fields": {
                name: {
                    "gradient_norm": square**0.5,
                    "weight_norm": float(part.norm()),
                    "rows": count,
                    "clipped": bounded,
                }
                for name, square, part, count, bounded in zip(
                    self._fields,
                    squares.tolist(),
                    parts,
                    torch.bincount(field_of, minlength=number).tolist(),
                    [None] * number
                    if clipped is None
                    else torch.bincount(field_of[clipped], minlength=number).tolist(),
                    strict=True,
                )
            },
            "frequency": None if factors is None else self._by_frequency(rows, factors),
            "dense": self._dense_norms(),
        }
        return TableStatistics(record, norms.new_zeros(0) if factors is None else factors, norms)

    def _factors(
        self,
        gradients: Mapping[Tensor, RowGradients],
        rows: Tensor,
        whole: Tensor,
        counts: Tensor,
        norms: Tensor,
    ) -> Tensor | None:
        """Return what the clip scales each row's gradient by, ``[n]``; None where nothing is clipped."""
        table, group = self._model.embedding.weight, self._group
        if group["clip"] == Clip.NONE:
            return None
        if group["clip"] == Clip.COWCLIP:
            dense_counts = counts.new_zeros(table.shape[0]).index_put_((rows,), counts)
            bounded, clipped = clip_table(
                whole, table[rows], table=table, rows=rows, counts=dense_counts, group=group
            )
        else:  # their limits are of whole fields or tables, rows that the batch does not have included
            part = self._optimizer.rows_to_update(table, group, gradients[table], None)
            bounded, clipped = clip_table(
                part.grads,
                part.weights,
                table=table,
                rows=part.rows,
                counts=None,
                group=group,
                global_norm=self._optimizer.norm_of_all(gradients, {}),
            )
            if part.rows is None:
                bounded, clipped = bounded[rows], clipped[rows]
        factors = bounded.norm(dim=1) / norms.clamp(min=torch.finfo(norms.dtype).tiny)
        return torch.where(clipped, factors.clamp(max=1 - torch.finfo(norms.dtype).eps), 1.0)

    def _by_frequency(self, rows: Tensor, factors: Tensor) -> list[dict[str, Any]]:
        number = len(FREQUENCY_BINS)
        bins = self._bin_of_row[rows].to(torch.int64)
        counts = torch.bincount(bins, minlength=number).tolist()
        clipped = torch.bincount(bins[factors < 1], minlength=number).tolist()
        sums = torch.bincount(bins, weights=factors.double(), minlength=number).tolist()
        bounds = [*pairwise(FREQUENCY_BINS), (FREQUENCY_BINS[-1], None)]
        return [
            {
                "from": start,
                "to": None if stop is None else stop - 1,
                "rows": counts[i],
                "clipped": clipped[i],
                "mean_factor": sums[i] / counts[i] if counts[i] else None,
            }
            for i, (start, stop) in enumerate(bounds)
        ]

    def _dense_norms(self) -> dict[str, float]:
        weights = list(self._model.network.parameters())
        grads = [weight.grad for weight in weights if weight.grad is not None]
        return {
            "gradient_norm": _norm_of(grads),
            "weight_norm": _norm_of(weights),
        }


def training_counts(dataset: Dataset) -> Tensor:
    """Return how often each id occurs among the rows that the vocabularies are of, int64 ``[rows]``."""
    columns = [
        pl.read_parquet(dataset.vocabulary_file(name), columns=["count"])["count"].to_torch()
        for name in dataset.fields
    ]
    return torch.cat(columns)


def _norm_of(tensors: Sequence[Tensor]) -> float:
    if not tensors:
        return 0.0
    return float(torch.stack([tensor.detach().double().norm() for tensor in tensors]).norm())
