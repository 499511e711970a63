"""Update a model day by day on a log that drifts, and see what that is worth: AUC and log loss of each day.

    python benchmarks/daily.py --days 7 --rows 100000 --out /tmp/daily

Day 1 is prepared and trained on. Each later day is added with --grow-vocab; then, before anything is trained
on it, three runs are evaluated on it: that of day 1, one that was updated every day by one pass over that
day, and with --retrain one that was trained anew on day 1 and all days up to the one before.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--days", type=int, default=7)
    parser.add_argument("--rows", type=int, default=100_000, help="of a day")
    parser.add_argument("--drift", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0, help="of the rows and of training")
    parser.add_argument("--recipe", default="small")
    parser.add_argument("--model", default="deepfm")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--retrain", action="store_true", help="train anew on all days each day, too")
    parser.add_argument("--out", type=Path, required=True, help="folder for days, dataset, runs, daily.json")
    options = parser.parse_args()
    if options.out.exists():
        sys.exit(f"{options.out} exists: choose another --out")
    Daily(options).run()


class Daily:
    """The days one after the other."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.out: Path = options.out
        self.data = self.out / "data"
        self.flags = ["--recipe", options.recipe, "--model", options.model, "--seed", options.seed]
        self.flags += ["--threads", options.threads]

    def run(self) -> None:
        """Print a line a day, and write daily.json."""
        options = self.options
        logs = self.out / "logs"
        stampede(
            "synth", "criteo", "--days", options.days, "--rows", options.rows, "--drift", options.drift,
            "--seed", options.seed, "--out", logs,
        )  # fmt: skip
        files = sorted(logs.iterdir())
        fit = ["--recipe", options.recipe, "--test-fraction", 0]
        stampede("prepare", "criteo", files[0], *fit, "--out", self.data)
        stampede("train", self.data, *self.flags, "--out", self.run_of(1))
        print(f"{'day':>3}  {'new ids':>8}  {'not updated':>17}  {'updated daily':>17}  {'trained anew':>17}")
        found = []
        for day, file in enumerate(files[1:], 2):
            found.append(self.day(day, file))
            print(line(found[-1]), flush=True)
        document = {"options": {k: str(v) for k, v in vars(options).items()}, "days": found}
        (self.out / "daily.json").write_text(json.dumps(document, indent=1) + "\n", "utf-8")

    def run_of(self, day: int, kind: str = "updated") -> Path:
        """Return the folder of the run after a day."""
        return self.out / "runs" / f"{kind}_{day:02}"

    def day(self, day: int, file: Path) -> dict[str, Any]:
        """Add a day, evaluate on it what earlier days taught, then train on it."""
        split, before = f"day_{day:02}", self.run_of(day - 1)
        stampede("prepare", "criteo", file, "--out", self.data, "--append", split, "--grow-vocab")
        growth = stampede("inspect", self.data)["growths"][-1]
        figures: dict[str, Any] = {"day": day, "new_ids": sum(growth["ids"].values())}
        runs = {"not_updated": self.run_of(1), "updated": before}
        if self.options.retrain:
            runs["anew"] = self.retrain(day)
        for name, run in runs.items():
            metrics = stampede("evaluate", run, "--split", split, "--threads", self.options.threads)
            figures[name] = {key: metrics[key] for key in ("auc", "logloss", "click_rate", "mean_score")}
        started = time.perf_counter()
        stampede(
            "train", self.data, "--init-from", before, "--train-split", split, "--valid-split", "none",
            "--test-split", "none", "--out", self.run_of(day),
        )  # fmt: skip
        return figures | {"update_seconds": time.perf_counter() - started}

    def retrain(self, day: int) -> Path:
        """Prepare and train anew on all days before one, as if there had been no dataset and no run."""
        data, run = self.out / "anew", self.run_of(day - 1, "anew")
        shutil.rmtree(data, ignore_errors=True)
        files = sorted((self.out / "logs").iterdir())[: day - 1]
        stampede(
            "prepare", "criteo", *files, "--recipe", self.options.recipe, "--test-fraction", 0, "--out", data
        )
        stampede("train", data, *self.flags, "--out", run)
        file = self.out / "logs" / f"day_{day:02}.tsv"
        stampede("prepare", "criteo", file, "--out", data, "--append", f"day_{day:02}")
        return run


def stampede(*arguments: object) -> Any:
    """Run a command; return its document."""
    command = [sys.executable, "-m", "stampede", *map(str, arguments), "--json"]
    job = subprocess.run(command, capture_output=True, text=True, check=False)
    if job.returncode:
        sys.exit(f"{' '.join(command[2:])}: {job.stderr.strip().splitlines()[-1]}")
    return json.loads(job.stdout)


def line(figures: dict[str, Any]) -> str:
    """Return the line of a day: AUC and log loss of each run."""
    cells = [
        f"{figures[name]['auc']:.4f} / {figures[name]['logloss']:.4f}" if name in figures else "-"
        for name in ("not_updated", "updated", "anew")
    ]
    return f"{figures['day']:>3}  {figures['new_ids']:>8,}  " + "  ".join(f"{cell:>17}" for cell in cells)


if __name__ == "__main__":
    main()
