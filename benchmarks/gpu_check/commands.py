"""Section ``train``: the commands from a raw log to an AUC, with and without a CUDA graph."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.cli import make_log, packages_missing, stampede
from benchmarks.gpu_check.options import Options
from benchmarks.gpu_check.record import Findings, Part

AUC_TOLERANCE = 1e-3
"""Between a run with a graph and one without: the kernels are the same."""


def missing(options: Options) -> str | None:
    """Say which packages of the command are."""
    return packages_missing()


def parts(options: Options) -> list[Part]:
    """Prepare, train and evaluate; by the first recipe without a graph as well."""
    jobs = _Jobs(options, Path.cwd())
    found = [Part("synth", jobs.synth)]
    for number, recipe in enumerate(options.log_recipes):
        found += [
            Part(f"prepare {recipe}", partial(jobs.prepare, recipe)),
            Part(f"train {recipe}", partial(jobs.train, recipe)),
        ]
        if number == 0:
            found.append(Part(f"evaluate {recipe}", partial(jobs.evaluate, recipe)))
            if options.device != "cpu":
                found.append(
                    Part(f"train {recipe} --no-cuda-graph", partial(jobs.train_without_graph, recipe))
                )
    return found


class _Jobs:
    """The commands, which follow on each other."""

    def __init__(self, options: Options, folder: Path) -> None:
        self._options, self._folder = options, folder
        self._aucs: dict[str, float | None] = {}

    def synth(self, findings: Findings) -> None:
        log = make_log(self._folder, rows=self._options.log_rows)
        findings.note(bytes=log.stat().st_size)

    def prepare(self, recipe: str, findings: Findings) -> None:
        log = make_log(self._folder, rows=self._options.log_rows)
        answer = stampede(
            *("prepare", "criteo", log, "--recipe", recipe, "--out", self._folder / f"data-{recipe}")
        )
        ids = sum(field["size"] for field in answer["fields"].values())
        findings.note(rows=answer["rows"], ids=ids, **_seconds(answer))

    def train(self, recipe: str, findings: Findings) -> None:
        self._aucs[recipe] = self._train(recipe, f"run-{recipe}", findings)

    def evaluate(self, recipe: str, findings: Findings) -> None:
        answer = stampede("evaluate", self._folder / f"run-{recipe}", "--split", "test")
        findings.note(auc=answer["auc"], logloss=answer["logloss"], wall_seconds=answer["wall_seconds"])
        self._compare(self._aucs.get(recipe), answer["auc"], "train and evaluate give", findings)

    def train_without_graph(self, recipe: str, findings: Findings) -> None:
        auc = self._train(recipe, f"run-{recipe}-eager", findings, "--no-cuda-graph")
        self._compare(self._aucs.get(recipe), auc, "with and without a graph come", findings)

    def _train(self, recipe: str, run: str, findings: Findings, *more: str) -> float | None:
        options = self._options
        answer = stampede(
            *("train", self._folder / f"data-{recipe}", "--recipe", recipe, "--device", options.device),
            *("--batch-size", options.log_batch_size, "--epochs", options.log_epochs),
            *("--precision", options.log_precision, "--out", self._folder / run, *more),
        )
        names = ("valid", "test", "best_epoch", "steps", "samples_per_second")
        findings.note(**{name: answer[name] for name in names}, **_seconds(answer))
        auc: float | None = answer["test"]["auc"]
        return auc

    def _compare(self, one: float | None, other: float | None, what: str, findings: Findings) -> None:
        if one is None or other is None:
            findings.fault(f"{what} AUCs {one} and {other}")
            return
        findings.note(auc_difference=abs(one - other))
        if abs(one - other) > AUC_TOLERANCE:
            findings.fault(f"{what} AUCs {one} and {other}")


def _seconds(answer: dict[str, Any]) -> dict[str, float]:
    return {"command_seconds": answer["seconds"], "wall_seconds": answer["wall_seconds"]}
