"""Prepare more than fits into memory: the same dataset, at a flat peak.

    python -m benchmarks.memory --rows 24000000 --limit 1GB

A synthetic Criteo log is prepared in full memory, within the limit, and within it again from the same rows
in 24 files; a log of a sixth of the rows shows whether the peak grows with them. Where control groups can be
made the limit is enforced: the command dies if it takes more. The datasets are compared file by file.
"""

from __future__ import annotations

import filecmp
import os
import sys
from pathlib import Path

import polars as pl
from benchmarks.measure import Cost, limited_memory, log_options, measure, working_log

from stampede.pipeline import Dataset
from stampede.pipeline.memory import parse_bytes

FILES = 24


def main() -> None:
    """Run the benchmark."""
    parser = log_options(__doc__, rows=24_000_000)
    parser.add_argument("--limit", default="1GB", help="memory that the command may take")
    options = parser.parse_args()
    with working_log(options) as (folder, log):
        _run(log, folder, options.limit, options.min_count)


def _run(log: Path, folder: Path, limit: str, min_count: int) -> None:
    days, sixth = _cut(log, folder)
    with limited_memory(parse_bytes(limit)) as group:
        held = "enforced by a control group" if group else "watched"
        print(f"{log.stat().st_size / 1e9:.2f} GB, {os.cpu_count()} cores, limit {limit}, {held}\n")
        print(f"{'':<28} {'seconds':>8} {'CPU s':>7} {'peak MB':>8} {'anonymous MB':>13}")

        def prepare(title: str, out: Path, files: list[Path], *more: object, group: Path | None) -> Dataset:
            command = [sys.executable, "-m", "stampede", "prepare", "criteo", *files, "--out", out]
            cost = measure([*command, "--min-count", min_count, *more], group=group)
            _print_row(title, cost)
            return Dataset.open(out)

        limited = ("--memory-limit", limit)
        prepare("a sixth of the rows, limited", folder / "sixth", [sixth], *limited, group=group)
        little = prepare("limited", folder / "little", [log], *limited, group=group)
        cut = prepare(f"limited, {FILES} files", folder / "cut", days, *limited, group=group)
        plenty = prepare("unlimited", folder / "plenty", [log], group=None)
    for other in (little, cut):
        _check_same(plenty, other)
    largest = max(plenty.sizes.items(), key=lambda item: item[1])
    distinct = pl.scan_parquet(plenty.vocabulary_file(largest[0])).select(pl.len()).collect().item()
    print(f"\nThe three datasets are the same, byte for byte: {sum(plenty.rows.values()):,} rows,")
    print(f"{sum(plenty.sizes.values()):,} ids, {distinct:,} of them of {largest[0]}.")


def _cut(log: Path, folder: Path) -> tuple[list[Path], Path]:
    """Write the log in files of a few rows less or more each, and its first sixth."""
    size = log.stat().st_size
    days = []
    with log.open("rb") as lines:
        for day in range(FILES):
            days.append(folder / f"day_{day:02}.tsv")
            with days[-1].open("wb") as file:
                while lines.tell() < size * (day + 1) // FILES:
                    file.write(lines.read(min(1 << 20, size * (day + 1) // FILES - lines.tell())))
                    file.write(lines.readline())
    sixth = folder / "sixth.tsv"
    with sixth.open("wb") as file:
        for day_file in days[: FILES // 6]:
            file.write(day_file.read_bytes())
    return days, sixth


def _print_row(title: str, cost: Cost) -> None:
    print(
        f"{title:<28} {cost.seconds:>8.1f} {cost.cpu_seconds:>7.1f} {cost.resident / 1e6:>8,.0f} "
        f"{cost.anonymous / 1e6:>13,.0f}",
        flush=True,
    )


def _check_same(one: Dataset, other: Dataset) -> None:
    for file in sorted(path.relative_to(one.path) for path in one.path.rglob("*") if path.is_file()):
        if not filecmp.cmp(one.path / file, other.path / file, shallow=False):
            sys.exit(f"{one.path.name} and {other.path.name} differ in {file}")


if __name__ == "__main__":
    main()
