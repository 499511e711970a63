"""One step and one epoch of the same DeepFM, by Stampede and by what one would take instead, on the CPU.

    make env-peers
    python -m benchmarks.peers --batch-sizes 1024,8192,65536 --json peers.json

All have the same model (DeepFM, 26 fields, 13 dense features, embeddings of 10, MLP of 400x3), initial
weights, rows in the same order, learning rate, threads; before anything is timed, their losses on the same
rows must agree. Contenders: Stampede; plain torch with one table and SparseAdam (torch-sparse), with one
table and fused Adam (torch-fused), with an nn.Embedding a field (torch-fields); DeepCTR-Torch and FuxiCTR, in
an environment of their own, with torch's fused Adam, or (-default, only where asked for) with the Adam that
their "adam" gives. Stampede alone clips by CowClip; the files beside this one say what else differs.

The first tables, one a batch size: the median speed of a step over rows in memory, with ids of a long tail
and tables of --rows rows. Each contender is a process of its own; they take turns of --seconds in --rounds
rounds, one at a time. ``first/it`` is the speed of the first contender over that of the line, the median over
the rounds. ``MB`` is the highest resident memory less what there was with the rows in memory, ``besides``
less the tables and their two Adam moments too. ``rows`` says which rows of the tables a step updates.

The last table: one epoch over rows of ``stampede synth criteo`` at --epoch-batch-size, run once by each one's
own entry (Stampede's trainer, the libraries' ``fit`` with their loaders, the plain loop over tensors), in
rows a second of the training, and the test AUC and log loss after it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.peers.processes import CONTENDERS, PEERS_PYTHON, Worker, started
from benchmarks.peers.task import EMBEDDING_DIM, FIELDS, Rows, Task, Values, Weights

from stampede.pipeline import Dataset
from stampede.pipeline.synth import synthesise
from stampede.training.metrics import auc, log_loss
from stampede.workflows.prepare import PrepareRequest, run_prepare

STEP_ROWS = 1 << 18
BATCHES_AT_LEAST = 4
REST_SECONDS = 0.1
"""Between turns, for the threads of the last one to stop spinning."""
TABLE_BYTES_PER_ROW = 3 * 4 * (EMBEDDING_DIM + 1)  # weights and two moments, float32


def main() -> None:
    """Run the benchmark."""
    options = _options()
    names = options.contenders.split(",")
    unknown = [name for name in names if name not in CONTENDERS]
    if unknown:
        sys.exit(f"unknown contender {unknown[0]}: choose from {', '.join(CONTENDERS)}")
    if not options.peers_python.exists():
        left_out = [name for name in names if CONTENDERS[name].is_peer]
        names = [name for name in names if name not in left_out]
        if left_out:
            print(f"left out: {', '.join(left_out)}: there is no {options.peers_python} (make env-peers)")
    machine = {"cpu": _cpu(), "cores": os.cpu_count(), "load": os.getloadavg()[0], "threads": options.threads}
    print(
        f"DeepFM 400x3, tables of {options.rows:,} rows x {EMBEDDING_DIM + 1}, {options.threads} threads; "
        f"{machine['cpu']}, {machine['cores']} cores, load {machine['load']:.1f}"
    )
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        steps = _compare_steps(Path(folder), names, options)
        names = [name for name in names if any(figure["contender"] == name for figure in steps)]
        epochs = _compare_epochs(Path(folder), names, options) if options.epoch_rows else []
    if options.json:
        document = {"machine": machine, "table_rows": options.rows, "steps": steps, "epochs": epochs}
        options.json.write_text(json.dumps(document, indent=2) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    usual = ",".join(name for name in CONTENDERS if not name.endswith("-default"))
    parser.add_argument(
        "--contenders", default=usual, help="by comma, the one to compare with first; default: %(default)s"
    )
    parser.add_argument("--batch-sizes", default="1024,8192,65536", help="default: %(default)s")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the tables together")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5, help="of a turn, which has one step at least")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--l2", type=float, default=1e-5)
    parser.add_argument("--epoch-rows", type=int, default=250_000, help="synthetic rows; 0: no epoch")
    parser.add_argument("--epoch-batch-size", type=int, default=1024)
    parser.add_argument("--peers-python", type=Path, default=PEERS_PYTHON)
    parser.add_argument("--folder", type=Path, help="where to work; default: the system's temporary folder")
    parser.add_argument("--json", type=Path, help="a file for all figures")
    return parser.parse_args()


def _compare_steps(root: Path, names: Sequence[str], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Time steps at each batch size, print a table of each and return the figures."""
    batch_sizes = [int(text) for text in options.batch_sizes.split(",")]
    sizes = [options.rows // FIELDS] * FIELDS
    rows = Rows.planted(max(STEP_ROWS, BATCHES_AT_LEAST * max(batch_sizes)), sizes)
    folder = root / "steps"
    folder.mkdir()
    rows.save(folder, "train")
    figures = []
    for batch_size in batch_sizes:
        task = Task(rows, Weights.draw(sizes), _values(options, sizes, batch_size))
        title = f"batch {batch_size:,}"
        print(f"\n{title:<22} {'k samples/s':>11} {'first/it':>8} {'MB':>7} {'besides':>8}  rows")
        with started(folder, names, task, peers_python=options.peers_python) as workers:
            turns = _take_turns(workers, rounds=options.rounds, seconds=options.seconds)
            for worker in workers:
                figure = _figure(worker, turns[worker.name], turns[workers[0].name], task.values)
                figures.append(figure)
                print(
                    f"{worker.name:<22} {figure['samples_per_second'] / 1e3:>11.1f} "
                    f"{figure['first_over_it']:>8.2f} {figure['memory_bytes'] / 1e6:>7,.0f} "
                    f"{figure['memory_besides_tables_bytes'] / 1e6:>8,.0f}  {worker.updates}",
                    flush=True,
                )
    return figures


def _take_turns(workers: Sequence[Worker], *, rounds: int, seconds: float) -> dict[str, list[list[float]]]:
    """Return the seconds of each step, of each round, of each worker."""
    turns: dict[str, list[list[float]]] = {worker.name: [] for worker in workers}
    for _ in range(rounds):
        for worker in workers:
            turns[worker.name].append(worker.ask(do="turn", seconds=seconds)["seconds"])
            time.sleep(REST_SECONDS)
    return turns


def _figure(
    worker: Worker, turns: list[list[float]], turns_of_first: list[list[float]], values: Values
) -> dict[str, Any]:
    steps = [seconds for turn in turns for seconds in turn]
    ratios = [
        statistics.median(turn) / statistics.median(of_first)
        for turn, of_first in zip(turns, turns_of_first, strict=True)
    ]
    memory = worker.ask(do="memory")["bytes"]
    return {
        "contender": worker.name,
        "batch_size": values.batch_size,
        "samples_per_second": values.batch_size / statistics.median(steps),
        "steps": len(steps),
        "first_over_it": statistics.median(ratios),
        "first_over_it_by_round": ratios,
        "memory_bytes": memory,
        "memory_besides_tables_bytes": memory - TABLE_BYTES_PER_ROW * sum(values.sizes),
        "updates": worker.updates,
        "torch": worker.torch,
    }


def _compare_epochs(root: Path, names: Sequence[str], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Train an epoch by each, one after another, print a table and return the figures."""
    folder = root / "epochs"
    folder.mkdir()
    dataset = _synthetic(folder, options.epoch_rows)
    train, test = (_rows_of(dataset, split) for split in ("train", "test"))
    train.save(folder, "train")
    test.save(folder, "test")
    sizes = list(dataset.sizes.values())
    values = _values(options, sizes, options.epoch_batch_size, dataset=str(dataset.path))
    task = Task(train, Weights.draw(sizes), values)
    print(
        f"\none epoch of {len(train):,} rows, batch {values.batch_size:,}, {sum(sizes):,} ids; "
        f"test of {len(test):,} rows\n{'':<22} {'k rows/s':>11} {'AUC':>8} {'log loss':>9}"
    )
    figures = []
    for name in names:
        with started(folder, [name], task, peers_python=options.peers_python) as workers:
            for worker in workers:
                epoch = worker.ask(do="epoch")
                scores = np.load(epoch["scores"])
                figure = {
                    "contender": name,
                    "rows_per_second": len(train) / epoch["seconds"],
                    "auc": auc(test.labels, scores),
                    "log_loss": log_loss(test.labels, scores),
                }
                figures.append(figure)
                print(
                    f"{name:<22} {figure['rows_per_second'] / 1e3:>11.1f} {figure['auc']:>8.4f} "
                    f"{figure['log_loss']:>9.4f}",
                    flush=True,
                )
    return figures


def _values(
    options: argparse.Namespace, sizes: list[int], batch_size: int, *, dataset: str | None = None
) -> Values:
    return Values(sizes, batch_size, options.threads, options.learning_rate, options.l2, dataset)


def _synthetic(folder: Path, rows: int) -> Dataset:
    """Prepare a synthetic log, a fifth of its rows to test."""
    log = folder / "log.tsv"
    synthesise("criteo", log, rows=rows)
    given = {"valid_fraction": 0.0, "test_fraction": 0.2, "min_count": 2}
    request = PrepareRequest("criteo", [str(log)], folder / "dataset", "criteo", given)
    return run_prepare(request, force=False).dataset


def _rows_of(dataset: Dataset, split: str) -> Rows:
    frame = dataset.read(split, ["label", *dataset.dense_columns, *dataset.fields])
    return Rows(
        np.ascontiguousarray(frame.select(dataset.fields).to_numpy(), np.int32),
        np.ascontiguousarray(frame.select(dataset.dense_columns).to_numpy(), np.float32),
        np.ascontiguousarray(frame["label"].to_numpy(), np.int8),
    )


def _cpu() -> str:
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return found.group(1) if found else "unknown CPU"


if __name__ == "__main__":
    main()
