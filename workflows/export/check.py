"""Whether an exported graph scores as the run's own model does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stampede import StampedeError
from stampede.pipeline.dataset import UNSEEN_ID
from stampede.training.batch import Batch, batch_of
from stampede.training.evaluation import logits_of
from stampede.training.metrics import probabilities_of
from stampede.training.models import CTRModel
from stampede.workflows.run import Run

TOLERANCE = 1e-5

CHECKED_ROWS = 2048
BROKEN_ROWS = 256
"""Of those, how many are scored again with ids that no field has."""

ScoreFunction = Callable[[Tensor, Tensor], npt.NDArray[np.float32]]
"""Float32 scores [B] of dense features [B, n_dense] and ids [B, F] (int64), by what was exported."""


@dataclass(frozen=True)
class Agreement:
    """The largest difference of two scores of a row, and how many rows were scored."""

    max_difference: float
    rows: int


def rows_to_check(run: Run) -> Batch:
    """Return rows of the run's dataset, of the test split if it has one; else random ones."""
    encoder = run.encoder
    fields = list(encoder.vocabularies)
    try:
        dataset = run.open_dataset()
        split = next(name for name in ("test", "valid", "train") if dataset.rows.get(name))
        frame = dataset.scan(split).select(*encoder.dense_columns, *fields).head(CHECKED_ROWS).collect()
    except (StampedeError, OSError, StopIteration):
        return _random_rows([v.size for v in encoder.vocabularies.values()], len(encoder.dense_columns))
    return batch_of(frame, dense_columns=encoder.dense_columns, fields=fields)


def compare(model: CTRModel, score: ScoreFunction, rows: Batch) -> Agreement:
    """Compare what was exported with the model: on rows, and on rows with ids out of range.

    Raises
    ------
    StampedeError
        They differ by more than 1e-5, or the batch sizes 1 and 0 do not work.
    """
    ids = rows.ids.to(torch.int64)
    broken, mended = _with_broken_ids(ids[:BROKEN_ROWS], model.embedding.sizes)
    cases = [(rows.dense, ids, ids), (rows.dense[:BROKEN_ROWS], broken, mended)]
    cases += [(rows.dense[:1], ids[:1], ids[:1]), (rows.dense[:0], ids[:0], ids[:0])]
    worst, checked = 0.0, 0
    for dense, given, meant in cases:
        wanted = _scores_of(model, dense, meant)
        found = score(dense, given)
        if found.shape != wanted.shape:
            raise StampedeError(f"the exported model gave scores {found.shape} where {wanted.shape} are due")
        difference = float(np.abs(found - wanted).max(initial=0.0))
        if not difference <= TOLERANCE:  # NaN is not
            raise StampedeError(
                f"the exported model's scores differ from the run's by {difference:.2g}, more than "
                f"{TOLERANCE:.0e}: nothing was written; please report it with the model's name"
            )
        worst, checked = max(worst, difference), checked + len(wanted)
    return Agreement(worst, checked)


def _scores_of(model: CTRModel, dense: Tensor, ids: Tensor) -> npt.NDArray[np.float64]:
    """Return the scores of the run's own model, float64 [B]."""
    labels = torch.zeros(len(ids), dtype=torch.int8)
    ((logits, _),) = logits_of(model, [Batch(dense, ids, labels)])
    return probabilities_of(logits.numpy())


def _random_rows(sizes: list[int], n_dense: int) -> Batch:
    generator = torch.Generator().manual_seed(0)
    columns = [torch.randint(size, (CHECKED_ROWS,), generator=generator) for size in sizes]
    dense = torch.rand(CHECKED_ROWS, n_dense, generator=generator)
    return Batch(dense, torch.stack(columns, 1), torch.zeros(CHECKED_ROWS, dtype=torch.int8))


def _with_broken_ids(ids: Tensor, sizes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Put ids that no field has in every second place; return also what they are to be read as."""
    limits = torch.iinfo(torch.int64)
    largest = torch.tensor(sizes)  # [F]
    extremes = [torch.full_like(largest, value) for value in (-1, limits.min, limits.max, 1 << 31)]
    kinds = torch.stack([*extremes, largest, largest + 1])  # [kinds, F]
    row = torch.arange(len(ids)).unsqueeze(1)
    chosen = (row + torch.arange(len(sizes))) % 2 == 0  # [B, F]
    foreign = kinds[(row[:, 0] // 2) % len(kinds)]  # [B, F]
    return torch.where(chosen, foreign, ids), torch.where(chosen, UNSEEN_ID, ids)
