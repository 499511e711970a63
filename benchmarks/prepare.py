"""Time preparation against NVTabular on the CPU: the same raw file, the same work, one run of both.

    make env-nvtabular
    python -m benchmarks.prepare --rows 2000000

Both sides turn the same Criteo text into ids (values below --min-count share one), the count of each value,
standardised numbers, and parquet, every row in the training split. Each is one command in a fresh process,
timed from start to exit, after the file has been read once. Stampede is run before and after each way of
NVTabular, and the mean is taken, for the speed of a shared machine changes. NVTabular runs in its own
environment, in each of the ways that --ways names (route-workers: see prepare_nvtabular.py); the fastest is
compared. The results are compared too: the values kept and their counts, and in every row the counts, the
null and rare values, and the numbers.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
from benchmarks.measure import Cost, log_options, measure, working_log

from stampede.pipeline import Dataset
from stampede.pipeline.dataset import FIRST_VALUE_ID, NULL_ID, UNSEEN_ID
from stampede.pipeline.engine_nvtabular import NVTabularEngine

NVTABULAR_SCRIPT = Path(__file__).with_name("prepare_nvtabular.py")
NUMBERS_TOLERANCE = 1e-4  # NVTabular adds up in float32 or float64 as it comes
GB = 1e9


def main() -> None:
    """Run the benchmark."""
    parser = log_options(__doc__, rows=2_000_000)
    parser.add_argument(
        "--ways", default=f"csv-1,parquet-1,parquet-{os.cpu_count()}", help="of NVTabular, by comma"
    )
    options = parser.parse_args()
    engine = NVTabularEngine.of_environment()
    engine.check()
    with working_log(options) as (folder, log):
        _compare(log, folder, str(engine.python), options.min_count, options.ways.split(","))


def _compare(log: Path, folder: Path, nvtabular: str, min_count: int, ways: Sequence[str]) -> None:
    size = log.stat().st_size
    measure(["cat", log])  # so that everyone finds the file in memory
    read = measure(["cat", log])
    parse_seconds, rows = _parse(log)
    print(f"{rows:,} rows, {size / GB:.2f} GB, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    print(
        f"{'':<24} {'seconds':>8} {'rows/s':>10} {'GB/s':>6} {'CPU s':>7} {'peak MB':>8} {'anonymous MB':>13}"
    )
    _print_row("plain read (cat)", read.seconds, rows, size)
    _print_row("lines split by polars", parse_seconds, rows, size)

    ours = folder / "stampede"
    arguments = ["criteo", log, "--out", ours, "--dense", "standard", "--min-count", min_count]
    arguments += ["--valid-fraction", 0, "--test-fraction", 0]

    def prepare() -> Cost:
        cost = measure([sys.executable, "-m", "stampede", "prepare", *arguments, "--force"])
        _print_row("stampede prepare", cost.seconds, rows, size, cost)
        return cost

    runs, costs = [prepare()], {}
    for way in ways:
        route, _, workers = way.partition("-")
        theirs = folder / way
        command = [nvtabular, NVTABULAR_SCRIPT, log, theirs, "--route", route]
        costs[way] = measure([*command, "--workers", workers, "--min-count", min_count])
        _print_row(f"NVTabular {way}", costs[way].seconds, rows, size, costs[way])
        runs.append(prepare())
        _check_agreement(Dataset.open(ours), theirs)

    fastest = min(costs, key=lambda way: costs[way].seconds)
    best = costs[fastest]
    seconds, cpu_seconds = (
        statistics.mean(costs)
        for costs in zip(*((run.seconds, run.cpu_seconds) for run in runs), strict=True)
    )
    print(f"\nThey agree. Against NVTabular {fastest}, its fastest here, by the mean of our runs:")
    print(f"  {best.seconds / seconds:.1f} times as fast", end="")
    print(f", with 1/{best.cpu_seconds / cpu_seconds:.1f} of the CPU time")
    print(f"  {max(run.resident for run in runs) / best.resident:.2f} of its peak memory", end="")
    print(f" ({max(run.anonymous for run in runs) / best.anonymous:.2f} of the anonymous)")
    print(f"  {seconds / parse_seconds:.1f} times the time that splitting the lines takes")


def _print_row(name: str, seconds: float, rows: int, size: int, cost: Cost | None = None) -> None:
    line = f"{name:<24} {seconds:>8.2f} {rows / seconds:>10,.0f} {size / GB / seconds:>6.3f}"
    if cost is not None:
        line += f" {cost.cpu_seconds:>7.1f} {cost.resident / 1e6:>8,.0f} {cost.anonymous / 1e6:>13,.0f}"
    print(line, flush=True)


def _parse(log: Path) -> tuple[float, int]:
    """Return the seconds that Polars takes to split every line at its tabs, and the number of lines."""
    started = time.perf_counter()
    fields = pl.scan_lines(log, name="line").select(pl.col("line").str.split_exact("\t", 39)).unnest("line")
    counted = fields.select(pl.all().count()).collect(engine="streaming")
    return time.perf_counter() - started, counted.row(0)[0]


def _check_agreement(dataset: Dataset, theirs: Path) -> None:
    """Stop unless both sides give the same values, counts and numbers, row by row."""
    files = sorted((theirs / "encoded").glob("part_*.parquet"), key=lambda file: int(file.stem[5:]))
    for field in dataset.fields:
        kept = pl.read_parquet(dataset.vocabulary_file(field)).drop_nulls("value").select("value", "count")
        ours = dataset.read("train", [field, f"{field}_count"])
        other = pl.read_parquet(files, columns=[field, f"{field}_count"], glob=False)
        own_id = ours[field] >= FIRST_VALUE_ID
        for kind in (NULL_ID, UNSEEN_ID):
            _agree((ours[field] == kind).equals(other[field] == kind), f"{field}: rows with id {kind}")
        same = ours[f"{field}_count"].filter(own_id).equals(other[f"{field}_count"].filter(own_id))
        _agree(same, f"{field}: counts of the rows")
        stored = pl.read_parquet(theirs / "categories" / f"unique.{field}.parquet", columns=[field])
        stored = stored.rename({field: "value"}).with_row_index("id", offset=FIRST_VALUE_ID)
        recounted = other.group_by(pl.col(field).cast(pl.UInt32).alias("id")).agg(
            count=pl.len().cast(pl.Int64)
        )
        counted = stored.join(recounted, on="id").select("value", "count")
        _agree(counted.sort("value").equals(kept.sort("value")), f"{field}: values and their counts")
    for name in dataset.dense_columns:
        ours_and_theirs = dataset.read("train", [name])[name], pl.read_parquet(files, columns=[name])[name]
        ours_array, their_array = (series.to_numpy() for series in ours_and_theirs)
        close = np.allclose(ours_array, their_array, rtol=NUMBERS_TOLERANCE, atol=NUMBERS_TOLERANCE)
        _agree(close, f"{name}: numbers")


def _agree(same: bool, what: str) -> None:
    if not same:
        sys.exit(f"the two sides disagree: {what}")


if __name__ == "__main__":
    main()
