"""``stampede report``: a run -> one HTML page of what it did and how good it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stampede import StampedeError
from stampede.pipeline.dataset import Dataset, Split
from stampede.pipeline.progress import Progress, Silent
from stampede.training.checkpoint import BEST
from stampede.training.config import Device
from stampede.training.rowgroups import IdTables
from stampede.workflows.files import check_free
from stampede.workflows.growth import dataset_of
from stampede.workflows.page import Block, Note, Page, Section, write
from stampede.workflows.reporting.clipping import clipping
from stampede.workflows.reporting.curves import curves
from stampede.workflows.reporting.history import History, SplitMetrics
from stampede.workflows.reporting.norms import norms
from stampede.workflows.reporting.quality import quality
from stampede.workflows.reporting.scored import ScoredRows, score_split
from stampede.workflows.reporting.settings import configuration, data
from stampede.workflows.reporting.summary import summary
from stampede.workflows.run import Run

REPORT = "report.html"


@dataclass(frozen=True)
class Reported:
    """Where the page is, and the metrics of the split that it shows; None where no split could be scored."""

    out: Path
    split: Split | None
    auc: float | None
    logloss: float | None


def run_report(
    run_path: Path,
    *,
    out: Path | None,
    force: bool,
    data_path: Path | None = None,
    split: Split | None = None,
    device: Device | None = None,
    threads: int | None = None,
    say: Callable[[str], None],
    progress: Progress | None = None,
) -> Reported:
    """Write the report of a run.

    Parameters
    ----------
    out:
        Where to; None takes ``report.html`` in the run, and replaces the one that is there.
    data_path:
        Another dataset with the run's vocabularies; None takes the run's own, where it lay. Where that is
        gone or another one by now, the page says so and leaves out what needs its rows.
    split:
        The split to score; None takes the one that the run was tested on, else its valid split.
    device, threads:
        Where to score; None as the run did.
    say:
        Receives a line that the user should read: what the page cannot show.

    Raises
    ------
    StampedeError
        The folder is no run, ``out`` exists without ``force`` or cannot be written, or the dataset, split or
        device that was asked for cannot be used.
    """
    if out is not None:
        check_free(out, force=force)
    run = Run.open(run_path)
    history = History.read(run.path)
    asked = any(value is not None for value in (data_path, split, device))
    dataset, scored, missing = None, None, ""
    try:
        dataset, ids = dataset_of(run, data_path)
        scored = _score(run, dataset, ids, split, device, threads, progress or Silent())
    except StampedeError as error:
        if asked and os.path.lexists(run.path / BEST):
            raise
        missing = f"No scores of a split are shown: {error}."
        say(missing)
    page = _page(run, history, dataset, scored, missing)
    place = run.path / REPORT if out is None else out
    write(page, place)
    return Reported(
        out=place,
        split=scored.split if scored else None,
        auc=scored.metrics.auc if scored else None,
        logloss=scored.metrics.logloss if scored else None,
    )


def _score(
    run: Run,
    dataset: Dataset,
    ids: IdTables | None,
    split: Split | None,
    device: Device | None,
    threads: int | None,
    progress: Progress,
) -> ScoredRows:
    mine = (run.config.test_split, run.config.valid_split)
    chosen = split or next((name for name in mine if name in dataset.rows), None)
    if chosen is None:
        raise StampedeError(f"{dataset.path} has neither a test nor a valid split")
    return score_split(run, dataset, chosen, ids=ids, device=run.use(device, threads), progress=progress)


def _page(
    run: Run, history: History, dataset: Dataset | None, scored: ScoredRows | None, missing: str
) -> Page:
    config = run.config
    test = history.result.test if history.result is not None else None
    if scored is not None and scored.split == config.test_split:
        measured = scored.metrics
        test = SplitMetrics(auc=measured.auc, logloss=measured.logloss, rows=measured.rows)
    notes: tuple[Block, ...] = (Note(missing),) if missing else ()
    scores = quality(scored) if scored is not None else Section("Scores", "", notes)
    return Page(
        title=f"Run {run.path.absolute().name}",
        subtitle=f"{config.model} on {run.encoder.schema.name}, batches of {config.batch_size:,} rows, "
        f"rule {config.rule}, clip {config.clip}",
        sections=[
            summary(history, config, test=test, notes=(missing,) if missing else ()),
            curves(history),
            clipping(history, config),
            norms(history),
            scores,
            configuration(config),
            data(run, dataset),
        ],
    )
