"""A split scored by a run's best epoch, with how frequent the values of each row are in training."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from stampede.pipeline.dataset import NULL_ID, UNSEEN_ID, Dataset, Split
from stampede.pipeline.progress import Progress
from stampede.pipeline.vocabulary import Vocabulary
from stampede.training.evaluation import EVALUATION_BATCH, logits_of
from stampede.training.loader import open_loader
from stampede.training.metrics import (
    Evaluation,
    Float64,
    Labels,
    Metrics,
    auc,
    log_loss,
    probabilities_of,
)
from stampede.training.rowgroups import IdTables
from stampede.workflows.reporting.text import bounds
from stampede.workflows.run import Run

LOWER_BOUNDS: Final = tuple(4**power for power in range(9))
"""Training counts at which a range begins: 1, 4, 16, … 65,536."""

EMPTY, UNSEEN, FIRST_RANGE = 0, 1, 2
"""Codes of a value: empty; without a count of its own in the training split; then the ranges of counts."""

CODE_NAMES: Final = (
    "empty",
    "unseen or rare",
    *(bounds(lower, None if lower == LOWER_BOUNDS[-1] else 4 * lower - 1) for lower in LOWER_BOUNDS),
)

Codes = NDArray[np.uint8]


@dataclass(frozen=True)
class Group:
    """The rows of one code: how many, and metrics of them; what is undefined is None."""

    name: str
    rows: int
    clicks: int
    auc: float | None
    logloss: float | None

    @property
    def click_rate(self) -> float:
        """Share of its rows that were clicked."""
        return self.clicks / self.rows


@dataclass(frozen=True)
class ScoredRows:
    """The rows of a split in the order of their scores.

    Attributes
    ----------
    metrics:
        Of all rows, as ``stampede evaluate`` gives them.
    labels, logits, scores:
        bool [N], float64 [N], float64 [N] in [0, 1].
    codes:
        uint8 [F, N]: the code of each field's value.
    rarest:
        uint8 [N]: the code of the row's value that is least frequent; an empty one counts by its own count.
    """

    split: Split
    fields: tuple[str, ...]
    metrics: Metrics
    labels: Labels
    logits: Float64
    scores: Float64
    codes: Codes
    rarest: Codes

    def groups(self, codes: Codes) -> list[Group]:
        """Evaluate the rows of each code that occurs."""
        groups: list[Group] = []
        for code in np.flatnonzero(np.bincount(codes, minlength=len(CODE_NAMES))):
            chosen = np.flatnonzero(codes == code)
            labels = self.labels[chosen]
            groups.append(
                Group(
                    CODE_NAMES[code],
                    rows=len(chosen),
                    clicks=int(labels.sum()),
                    auc=auc(labels, self.logits[chosen]),
                    logloss=log_loss(labels, self.scores[chosen]),
                )
            )
        return groups


def score_split(
    run: Run,
    dataset: Dataset,
    split: Split,
    *,
    ids: IdTables | None = None,
    device: torch.device,
    progress: Progress,
) -> ScoredRows:
    """Score a split with the best epoch of a run.

    Parameters
    ----------
    ids:
        What the run has for the dataset's ids where these grew, of
        :func:`stampede.workflows.growth.dataset_of`.

    Raises
    ------
    CheckpointError
        The run has no finished epoch, or its checkpoint is damaged.
    DatasetError
        There is no such split, or it is damaged.
    """
    model = run.load_model(device)
    loader = open_loader(
        dataset,
        split,
        batch_size=EVALUATION_BATCH,
        device=device,
        memory=run.config.loader_memory,
        ids=ids,
    )
    fields = tuple(run.encoder.vocabularies)
    vocabularies = list(run.encoder.vocabularies.values())
    tables = [codes_of(vocabulary) for vocabulary in vocabularies]
    of_empty = np.array([_range_of(vocabulary.counts[[NULL_ID]])[0] for vocabulary in vocabularies], np.uint8)
    labels = np.empty(loader.rows, np.bool_)
    logits = np.empty(loader.rows, np.float32)
    codes = np.empty((len(fields), loader.rows), np.uint8)
    rarest = np.empty(loader.rows, np.uint8)
    progress.start(f"score {split}", loader.rows)
    evaluation = Evaluation()
    done = 0
    for batch_logits, batch in logits_of(model, loader):
        here = slice(done, done + len(batch))
        of_rows = batch.ids.cpu().numpy()
        for column, table in enumerate(tables):
            codes[column, here] = table[of_rows[:, column]]
        rarest[here] = np.where(codes[:, here] == EMPTY, of_empty[:, None], codes[:, here]).min(axis=0)
        evaluation.update(batch_logits, batch.labels)
        logits[here] = batch_logits.float().cpu().numpy()
        labels[here] = batch.labels.cpu().numpy() == 1
        done += len(batch)
        progress.advance(len(batch))
    metrics = evaluation.result()
    order = np.argsort(logits)  # once: each group is in order then, and quick to evaluate
    sorted_logits = logits[order].astype(np.float64)
    for row in codes:
        row[:] = row[order]
    return ScoredRows(
        split=split,
        fields=fields,
        metrics=metrics,
        labels=labels[order],
        logits=sorted_logits,
        scores=probabilities_of(sorted_logits),
        codes=codes,
        rarest=rarest[order],
    )


def codes_of(vocabulary: Vocabulary) -> Codes:
    """Return the code of each id, uint8 [size]."""
    codes = _range_of(vocabulary.counts)
    codes[UNSEEN_ID] = UNSEEN  # what its count stands for are many values, each of them rare
    codes[NULL_ID] = EMPTY
    return codes


def _range_of(counts: NDArray[np.int64]) -> Codes:
    index = np.searchsorted(np.array(LOWER_BOUNDS), counts, side="right")
    return np.where(index == 0, UNSEEN, index - 1 + FIRST_RANGE).astype(np.uint8)


def standard_error(auc: float, clicks: int, others: int) -> float:
    """Return the standard error of an AUC (Hanley and McNeil, Radiology 143, 1982)."""
    of_click = auc / (2 - auc)
    of_other = 2 * auc**2 / (1 + auc)
    variance = auc * (1 - auc) + (clicks - 1) * (of_click - auc**2) + (others - 1) * (of_other - auc**2)
    return float(np.sqrt(max(variance, 0.0) / (clicks * others)))


def entropy(click_rate: float) -> float:
    """Return the log loss of scores that all are the click rate itself."""
    terms = [p * np.log(p) for p in (click_rate, 1 - click_rate) if p > 0]
    return -float(sum(terms))


@dataclass(frozen=True)
class ScoreBin:
    """Rows with neighbouring scores."""

    rows: int
    lowest: float
    highest: float
    mean_score: float
    click_rate: float


def quantile_bins(scored: ScoredRows, *, bins: int) -> list[ScoreBin]:
    """Cut the rows, in the order of their scores, into bins of equal size; equal scores are not divided."""
    scores, rows = scored.scores, len(scored.scores)
    if rows == 0:
        return []
    cuts = np.linspace(0, rows, bins + 1).astype(np.int64)[1:-1]
    edges = np.unique([0, *np.searchsorted(scores, scores[cuts]), rows])
    return [
        ScoreBin(
            rows=int(stop - start),
            lowest=float(scores[start]),
            highest=float(scores[stop - 1]),
            mean_score=float(scores[start:stop].mean()),
            click_rate=float(scored.labels[start:stop].mean()),
        )
        for start, stop in pairwise(edges)
    ]
