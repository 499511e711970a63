"""Studies whose runs are written by hand, so that every figure of the table can be worked out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stampede.pipeline.dataset import Dataset
from stampede.workflows.recipe import Recipe
from stampede.workflows.sweep.grid import Grid, Point, identity
from stampede.workflows.sweep.study import Outcome, Study, names_of

GRID = {
    "models": "deepfm",
    "batch_sizes": "1024,8192",
    "rules": "cowclip,linear",
    "clips": None,
    "seeds": "2",
}


def begin(dataset: Path, out: Path, *, resume: bool = False, **changes: Any) -> Study:
    fixed = changes.pop("fixed", {})
    recipe = changes.pop("recipe", Recipe())
    return Study.begin(
        out,
        Dataset.open(dataset),
        recipe_name="own",
        recipe=recipe,
        fixed=fixed,
        grid=Grid.parse(**GRID | changes),
        resume=resume,
        force=False,
    )


@pytest.fixture
def begin_study(small_dataset: Path, tmp_path: Path) -> Callable[..., Study]:
    """Begin a study, or go on with it: ``begin_study(batch_sizes="1024", resume=True)``."""
    return lambda **changes: begin(small_dataset, tmp_path / "study", **changes)


@pytest.fixture
def write_run() -> Callable[..., None]:
    """Write the run of a point as the trainer would have."""
    return write


def write(
    study: Study,
    point: Point,
    *,
    aucs: list[float] | None = None,
    test: float | None = None,
    status: str = "finished",
    reason: str | None = None,
    seconds: float = 10.0,
    records: list[dict[str, Any]] | None = None,
) -> None:
    configs = study.points()
    name = names_of(configs, study.outcomes())[point]
    folder = study.run_folder(name)
    folder.mkdir(parents=True)
    aucs = aucs or []
    lines = [*(records or [])]
    epochs = range(1, len(aucs) + 1)
    for epoch, auc in zip(epochs, aucs, strict=True):
        valid = {"auc": auc, "logloss": 1 - auc}
        lines.append({"kind": "epoch", "step": 10 * epoch, "epoch": epoch, "valid": valid, "best": True})
    if status == "finished":
        best = max(epochs, key=lambda epoch: aucs[epoch - 1])
        lines.append(
            {
                "kind": "result",
                "step": 10 * len(aucs),
                "epoch": best,
                "valid": {"auc": aucs[best - 1], "logloss": 1 - aucs[best - 1]},
                "test": None if test is None else {"auc": test, "logloss": 1 - test},
            }
        )
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    times = [{"step": 10 * epoch, "epoch": epoch, "rows": 1, "seconds": seconds * epoch} for epoch in epochs]
    (folder / "timings.jsonl").write_text("".join(json.dumps(line) + "\n" for line in times))
    done = {"epochs": len(aucs), "steps": 10 * len(aucs), "samples_per_second": 1e3, "seconds": seconds}
    study.keep(
        Outcome(
            name,
            identity(configs[point]),
            status,  # type: ignore[arg-type]
            reason,
            **(done if status == "finished" else {}),  # type: ignore[arg-type]
        )
    )
