"""What a command costs: wall and CPU time, and memory; with a limit on its memory where the system lets us.

Memory is the resident memory of a process and its children, added up, at its highest of twenty looks a
second. It includes pages of files that are mapped, which the system can drop at any time; "anonymous" leaves
them out.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stampede.pipeline.synth import synthesise

SECONDS_BETWEEN_LOOKS = 0.05
CONTROL_GROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Cost:
    """What a command took: wall and CPU time, and the highest memory of its processes in bytes."""

    seconds: float
    cpu_seconds: float
    resident: int
    anonymous: int


def measure(command: Sequence[object], *, group: Path | None = None) -> Cost:
    """Run a command to its end, in a control group if given, and watch the memory of its processes."""
    words = [str(word) for word in command]
    if group is not None:
        words = ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh", *words]
    peak = [0, 0]
    cpu_before = _cpu_seconds_of_children()
    started = time.perf_counter()
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=errors) as process,
    ):
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(SECONDS_BETWEEN_LOOKS):
                for kind, size in enumerate(_memory_of_tree(process.pid)):
                    peak[kind] = max(peak[kind], size)

        watcher = threading.Thread(target=watch)
        watcher.start()
        code = process.wait()
        seconds = time.perf_counter() - started
        cpu_seconds = _cpu_seconds_of_children() - cpu_before
        ended.set()
        watcher.join()
        if code:
            errors.seek(0)
            sys.exit(f"{command[0]} ended with {code}: {errors.read().decode()[-2000:]}")
    return Cost(seconds, cpu_seconds, *peak)


def _cpu_seconds_of_children() -> float:
    """Return the CPU time of the processes that were started and have ended, and of theirs."""
    times = os.times()
    return times.children_user + times.children_system


def _memory_of_tree(root: int) -> tuple[int, int]:
    """Return the resident memory, and the anonymous part of it, of a process and all below it, in bytes."""
    parents, sizes = {}, {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            facts = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
        except OSError:  # it has ended meanwhile
            continue
        if "VmRSS" in facts:
            process = int(facts["Pid"])
            parents[process] = int(facts["PPid"])
            sizes[process] = [int(facts[kind].split()[0]) * 1024 for kind in ("VmRSS", "RssAnon")]
    resident = anonymous = 0
    for process, (all_of_it, own) in sizes.items():
        above = process
        while above in parents and above != root:
            above = parents[above]
        if above == root:
            resident, anonymous = resident + all_of_it, anonymous + own
    return resident, anonymous


def log_options(description: str | None, *, rows: int) -> argparse.ArgumentParser:
    """Return a parser of the options of a benchmark that prepares a Criteo log."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=rows, help="synthetic rows")
    parser.add_argument("--log", type=Path, help="a Criteo log to take instead")
    parser.add_argument("--min-count", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where to work; default: the system's temporary folder")
    return parser


@contextmanager
def working_log(options: argparse.Namespace) -> Iterator[tuple[Path, Path]]:
    """Give a folder to work in and the log to prepare, as the options say."""
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        log = options.log
        if log is None:
            log = Path(name) / "log.tsv"
            synthesise("criteo", log, rows=options.rows)
        yield Path(name), log


@contextmanager
def limited_memory(limit: int) -> Iterator[Path | None]:
    """Give a control group whose processes can have ``limit`` bytes; None where none can be made."""
    name = f"stampede-{os.getpid()}"
    for folder, file in (
        (CONTROL_GROUPS, "memory.max"),
        (CONTROL_GROUPS / "memory", "memory.limit_in_bytes"),
    ):
        group = folder / name
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if (group / file).exists():
                (group / file).write_text(str(limit))
                yield group
                return
        finally:
            group.rmdir()
    yield None
