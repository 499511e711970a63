"""Preparation under fire: killed, out of disk, read-only, inputs that change. A script, too slow for a test.

    python tests/soak_prepare.py --kills 20 --seed 1

After each blow, what stands at --out is no dataset, or the old one, or the new one, whole; the next run
succeeds and leaves nothing beside it. Small and read-only disks are mounted, which takes root; without it
that part is left out, and said so.
"""

from __future__ import annotations

import argparse
import filecmp
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from stampede import DatasetError
from stampede.pipeline import Dataset
from stampede.pipeline.synth import synthesise

ROWS = 150_000
DISK_SIZES = 20


def main() -> None:
    """Run every part."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name:
        soak = Soak(Path(name), draw)
        soak.kills(options.kills)
        soak.changing_inputs()
        soak.disks()
    print("all held")


class Soak:
    """The logs, the datasets that they must give, and the blows."""

    def __init__(self, folder: Path, draw: random.Random) -> None:
        self.folder, self.draw = folder, draw
        self.log, self.other = folder / "log.tsv", folder / "other.tsv"
        synthesise("criteo", self.log, rows=ROWS, seed=1)
        synthesise("criteo", self.other, rows=ROWS // 3, seed=2)
        started = time.monotonic()
        self.new = self.prepared(folder / "new", self.log)
        self.seconds = time.monotonic() - started
        self.old = self.prepared(folder / "old", self.other)
        self.grown = folder / "grown"
        shutil.copytree(self.old, self.grown)
        finish(start(self.other, self.grown, "--append", "later"))

    def prepared(self, out: Path, log: Path) -> Path:
        """Prepare without a blow."""
        finish(start(log, out))
        return out

    def kills(self, number: int) -> None:
        """Kill at random moments: a first run, one that replaces a dataset, one that adds a split."""
        place = self.folder / "kills"
        place.mkdir()
        out = place / "out"
        seen = {"nothing": 0, "the old": 0, "the new": 0}
        for kill in range(number):
            kind = ("first", "force", "append")[kill % 3]
            shutil.rmtree(out, ignore_errors=True)
            if kind != "first":
                shutil.copytree(self.old, out)
            more = {"first": (), "force": ("--force",), "append": ("--append", "later")}[kind]
            log, wanted = (self.other, self.grown) if kind == "append" else (self.log, self.new)
            process = start(log, out, *more)
            late = kill % 2  # half of them about when folders are exchanged
            time.sleep(self.draw.uniform(0.8 * late, 1.0 + 0.1 * late) * self.seconds)
            process.kill()
            process.wait()
            seen[self.what_stands(out, old=None if kind == "first" else self.old, new=wanted)] += 1
            if not (out / "later").exists():
                again = ("--append", "later") if kind == "append" else ("--force",)
                finish(start(log, out, *again))
            check_same(out, wanted)
            check_alone(out)
        print(f"{number} kills: " + ", ".join(f"{what} stood {times} times" for what, times in seen.items()))

    def what_stands(self, out: Path, *, old: Path | None, new: Path) -> str:
        """Say what is at ``out``, and stop unless it may be."""
        try:
            Dataset.open(out)
        except DatasetError:
            if old is not None or out.exists():
                sys.exit(f"{out} does not open after a kill")
            return "nothing"
        stands = [name for name, whole in (("the old", old), ("the new", new)) if whole and same(out, whole)]
        if not stands:
            sys.exit(f"{out} opens after a kill, and is neither the old dataset nor the new one")
        return stands[0]

    def changing_inputs(self) -> None:
        """Delete, cut, replace and extend the input while it is read."""
        text = self.log.read_bytes()
        log, out = self.folder / "changing.tsv", self.folder / "changing"
        half = text[: len(text) // 2]

        def grow() -> None:
            with log.open("ab") as file:
                file.write(half[:100_000])

        def replace() -> None:
            self.folder.joinpath("next.tsv").write_bytes(half)
            self.folder.joinpath("next.tsv").rename(log)

        blows: dict[str, Callable[[], object]] = {
            "deleted": log.unlink,
            "cut": lambda: os.truncate(log, len(half)),
            "replaced": replace,
            "extended": grow,
        }
        for name, blow in blows.items():
            told = whole = 0
            for _ in range(4):
                log.write_bytes(text)
                shutil.rmtree(out, ignore_errors=True)
                process = start(log, out)
                threading.Timer(self.draw.uniform(0, self.seconds), blow).start()
                _, errors = process.communicate()
                if process.returncode:
                    told += 1
                    check_message(errors, process.returncode)
                    if out.exists():
                        sys.exit(f"input {name}: it failed and left {out}")
                elif same(out, self.new):
                    whole += 1
                else:
                    sys.exit(f"input {name}: a dataset was made that is not that of the log")
                check_alone(out)
                time.sleep(self.seconds)  # for a blow that came late
            print(f"input {name}: {told} times told, {whole} times the dataset was done before")

    def disks(self) -> None:
        """Prepare on disks that are too small, and on one that cannot be written."""
        needed = sum(file.stat().st_size for file in self.new.rglob("*") if file.is_file())
        full = done = 0
        for step in range(1, DISK_SIZES + 1):
            with mounted(self.folder / "disk", f"size={needed * 3 * step // DISK_SIZES}") as disk:
                if disk is None:
                    print("disks were left out: only root can mount them")
                    return
                process = start(self.log, disk / "out")
                _, errors = process.communicate()
                if process.returncode == 0:
                    check_same(disk / "out", self.new)
                    done += 1
                    continue
                check_message(errors, process.returncode, "is full")
                if left := list(disk.iterdir()):
                    sys.exit(f"a full disk: {left[0]} was left")
                full += 1
        print(f"{DISK_SIZES} disks: {full} too small and told so, {done} large enough")
        with mounted(self.folder / "disk", "ro") as disk:
            assert disk is not None
            process = start(self.log, disk / "out")
            _, errors = process.communicate()
            check_message(errors, process.returncode, "Read-only file system")
        print("a read-only disk was told")


def start(log: Path, out: Path, *more: str) -> subprocess.Popen[str]:
    """Start a preparation."""
    command = [sys.executable, "-m", "stampede", "prepare", "criteo", str(log), "--out", str(out), *more]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> None:
    """Wait for a preparation that must succeed."""
    _, errors = process.communicate()
    if process.returncode:
        sys.exit(f"a run that must succeed ended with {process.returncode}: {errors}")


def same(one: Path, other: Path) -> bool:
    """Whether two datasets are the same, byte for byte."""
    files = [sorted(p.relative_to(root) for p in root.rglob("*") if p.is_file()) for root in (one, other)]
    return files[0] == files[1] and all(filecmp.cmp(one / f, other / f, shallow=False) for f in files[0])


def check_same(out: Path, wanted: Path) -> None:
    """Stop unless a dataset is the one that must come out."""
    if not same(out, wanted):
        sys.exit(f"{out} is not the dataset that must come out")


def check_alone(out: Path) -> None:
    """Stop where something was left beside a dataset."""
    if left := [path for path in out.parent.iterdir() if path.name.startswith(f".{out.name}")]:
        sys.exit(f"{left[0]} was left")


def check_message(errors: str, code: int, words: str = "") -> None:
    """Stop unless an error is one clear line."""
    lines = [line for line in errors.splitlines() if line.startswith("stampede: ")]
    if code != 1 or len(lines) != 1 or words not in lines[0] or "Traceback" in errors:
        sys.exit(f"no clear message: code {code}: {errors}")


@contextmanager
def mounted(place: Path, options: str) -> Iterator[Path | None]:
    """Mount a small file system in memory; None where that cannot be."""
    place.mkdir(exist_ok=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], check=False).returncode:
        yield None
        return
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


if __name__ == "__main__":
    main()
