"""The head of a report: what the run is and what it came to."""

from __future__ import annotations

from stampede.training.config import TrainConfig
from stampede.workflows.page import Block, Facts, Note, Section
from stampede.workflows.reporting.history import History, SplitMetrics
from stampede.workflows.reporting.text import UNKNOWN, metric, whole

SHOWN_NOTES = 3


def summary(
    history: History, config: TrainConfig, *, test: SplitMetrics | None, notes: tuple[str, ...]
) -> Section:
    """Return the section at the top.

    Parameters
    ----------
    test:
        Metrics of the best epoch on the test split, where they are known.
    notes:
        What the reader should know before anything else.
    """
    best = history.best_epoch
    valid = best.valid if best is not None else None
    last = history.last_epoch
    clip = config.clip if config.optimizer != "helen" else "helen"
    speed = history.rows_per_second
    facts = Facts(
        [
            (
                "Test AUC",
                metric(test.auc if test else None),
                _remark(test, config.test_split),
            ),
            ("Test log loss", metric(test.logloss if test else None)),
            ("Valid AUC", metric(valid.auc if valid else None), "of the best epoch" if valid else ""),
            (
                "Valid log loss",
                metric(valid.logloss if valid else None),
                "of the best epoch" if valid else "",
            ),
            (
                "Best epoch",
                str(best.epoch) if best else UNKNOWN,
                f"of {last}; {config.epochs} were asked for",
            ),
            ("State", *_state(history, config)),
            ("Steps", whole(history.last_step), f"{len(history.skips)} left out" if history.skips else ""),
            ("Batch size", whole(config.batch_size), "rows a step"),
            ("Speed", whole(speed), "rows/s of training" if speed is not None else "no timings were written"),
            ("Model", config.model, f"embeddings of {config.embedding_dim}"),
            ("Scaling rule", str(config.rule)),
            ("Optimizer", config.optimizer, f"clip {clip}, update {config.update}"),
        ]
    )
    blocks: list[Block] = [facts]
    shown = list(notes) + list(history.notes[:SHOWN_NOTES])
    if len(history.notes) > SHOWN_NOTES:
        shown.append(f"{len(history.notes) - SHOWN_NOTES} more lines could not be read.")
    if history.skips:
        first, number = history.skips[0], len(history.skips)
        batches = (
            "1 batch was left out, at" if number == 1 else f"{number:,} batches were left out, the first at"
        )
        shown.append(f"{batches} step {first.step:,}{f': {first.reason}' if first.reason else ''}.")
    blocks += [Note(line) for line in shown]
    return Section("", "", blocks)


def _remark(metrics: SplitMetrics | None, split: str) -> str:
    if metrics is None:
        return "not measured"
    rows = "" if metrics.rows is None else f"{metrics.rows:,} rows"
    return rows if split == "test" else f"{rows} of the split {split}"


def _state(history: History, config: TrainConfig) -> tuple[str, str]:
    if history.result is not None:
        early = len(history.epochs) < config.epochs
        if not early:
            return "finished", ""
        if config.max_steps is not None and history.last_step >= config.max_steps:
            return "finished", f"after --max-steps {config.max_steps:,}"
        return "finished", f"early, by --patience {config.patience}" if config.patience else "early"
    if history.last_step == 0:
        return "not begun", "nothing was written yet"
    return "unfinished", f"last heard of at step {history.last_step:,}, epoch {history.last_epoch}"
