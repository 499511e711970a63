"""Training under fire: killed at random moments, resumed, and held to a run that nothing happened to.

    python tests/soak_resume.py --kills 20 --seed 1

A script, too slow for a test. For each loader one run is left alone, and others are killed (SIGKILL) while
they train, some more than once, and resumed to their end; all must end with the same bits of weights and
optimizer, the same metrics.jsonl and the same result. Then a disk fills up while a checkpoint is written;
that disk is mounted, which takes root, and is left out, and said so, without it.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from stampede.pipeline import PrepareOptions, Schema, prepare
from stampede.pipeline.synth import synthesise
from stampede.training.checkpoint import checkpoints_of

ROWS = {"device": 40_000, "stream": 400_000}  # several row groups, for several windows
FLAGS = (
    *("--recipe", "small", "--hidden", "16", "--epochs", "2", "--patience", "0"),
    *("--checkpoint-every", "40", "--threads", "1"),
)
LOADERS = {
    "device": ("--loader", "device", "--batch-size", "256"),
    "stream": ("--loader", "stream", "--loader-memory", "250MB", "--batch-size", "1024"),
}


def main() -> None:
    """Run every part."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20, help="of each loader")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for loader, flags in LOADERS.items():
            synthesise("criteo", folder / "log.tsv", rows=ROWS[loader], seed=1)
            prepare(
                Schema.preset("criteo"),
                [folder / "log.tsv"],
                folder / loader / "data",
                options=PrepareOptions(min_count=4),
            )
            kill_and_resume(folder / loader, loader, flags, kills=options.kills, draw=draw)
        fill_the_disk(folder / "device")
    print("all held")


def command(folder: Path, run: Path, *flags: str) -> list[str]:
    """Return the command line of a run."""
    train = ["train", str(folder / "data"), "--out", str(run), *FLAGS, *flags, "--json"]
    return [sys.executable, "-m", "stampede", *train]


def kill_and_resume(
    folder: Path, loader: str, flags: tuple[str, ...], *, kills: int, draw: random.Random
) -> None:
    """Kill runs while they train, some of them twice, resume each to its end, and compare."""
    whole = subprocess.run(command(folder, folder / "whole", *flags), capture_output=True, check=True)
    first = json.loads(whole.stdout)
    moments: list[str] = []
    while len(moments) < kills:
        run = folder / "killed"
        shutil.rmtree(run, ignore_errors=True)
        while True:
            process = subprocess.Popen(
                command(folder, run, *flags, "--resume"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            if killed_while_training(process, run, draw.uniform(0, first["seconds"])):
                moments.append(where(run))
                if draw.random() < 0.3:
                    continue
            process.communicate()
            break
        last = subprocess.run(command(folder, run, *flags, "--resume"), capture_output=True, check=False)
        if last.returncode:
            raise SystemExit(f"{loader}: exit {last.returncode}: {last.stderr.decode()}")
        compare(folder / "whole", run)
        second = json.loads(last.stdout)
        for key in ("valid", "test", "best_epoch", "steps"):
            if first[key] != second[key]:
                raise SystemExit(f"{loader}: {key} {second[key]} is not {first[key]}")
    print(f"{loader}: {len(moments)} kills held, after {', '.join(moments)}", flush=True)


def killed_while_training(process: subprocess.Popen[bytes], run: Path, seconds: float) -> bool:
    """Kill a process so many seconds after its run began to write; whether it was still alive then."""
    before = (run / "metrics.jsonl").stat().st_mtime_ns if (run / "metrics.jsonl").exists() else 0
    while process.poll() is None:
        if (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").stat().st_mtime_ns != before:
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                return True
        time.sleep(0.02)
    return False


def where(run: Path) -> str:
    """Return where a run is: its last record."""
    try:
        line = (run / "metrics.jsonl").read_text().splitlines()[-1]
        return f"step {json.loads(line)['step']}"
    except (OSError, IndexError):
        return "its start"


def compare(one: Path, other: Path) -> None:
    """Hold all that two runs computed to each other."""
    if (one / "metrics.jsonl").read_bytes() != (other / "metrics.jsonl").read_bytes():
        raise SystemExit(f"{other}/metrics.jsonl differs")
    for a, b in ((one / "best", other / "best"), (checkpoints_of(one)[0], checkpoints_of(other)[0])):
        if a.resolve().name != b.resolve().name:
            raise SystemExit(f"{b.resolve()} is not {a.resolve().name}")
        for name in ("model.safetensors", "optimizer.safetensors"):
            mine, others = load_file(a / name), load_file(b / name)
            if mine.keys() != others.keys():
                raise SystemExit(f"{b / name} holds other tensors")
            for key, tensor in mine.items():
                if tensor.numpy().tobytes() != others[key].numpy().tobytes():
                    raise SystemExit(f"{b / name}: {key} differs")
        states: list[dict[str, Any]] = [json.loads((place / "state.json").read_text()) for place in (a, b)]
        for state in states:
            for timing in ("seconds", "checksum", "checksums", "records"):
                del state[timing]
        if states[0] != states[1]:
            raise SystemExit(f"{b}/state.json differs")


def fill_the_disk(folder: Path) -> None:
    """Train onto a disk that is too small for all checkpoints; then make room and go on."""
    disk = folder / "disk"
    disk.mkdir()
    small = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)]
    if subprocess.run(small, capture_output=True, check=False).returncode:
        print("no disk can be mounted (not root): that part is left out")
        return
    try:
        ballast = disk / "ballast"
        ballast.write_bytes(b"\0" * (4 << 20))
        run = disk / "run"
        keep = ("--keep-checkpoints", "50")
        flags = LOADERS["device"]
        answer = subprocess.run(
            command(folder, run, *flags, *keep), capture_output=True, text=True, check=False
        )
        last = answer.stderr.strip().splitlines()[-1]
        if answer.returncode != 1 or "the disk is full" not in last:
            raise SystemExit(f"a full disk: exit {answer.returncode}, {last}")
        print(f"full disk: {last}")
        ballast.unlink()
        resumed = [*command(folder, run, *flags, "--keep-checkpoints", "1"), "--resume"]
        subprocess.run(resumed, capture_output=True, check=True)
        compare(folder / "whole", run)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


if __name__ == "__main__":
    main()
