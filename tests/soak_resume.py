"""Training under fire: killed at random moments, resumed, and held to a run that nothing happened to.

    python tests/soak_resume.py --kills 20 --seed 1

A script, too slow for a test. For each loader one run is left alone, and one is killed (SIGKILL) again and
again and resumed each time; both must end with the same bits of weights and optimizer, the same
metrics.jsonl and the same result. Then a disk fills up while a checkpoint is written; that disk is mounted,
which takes root, and is left out, and said so, without it.
"""

from __future__ import annotations

import argparse
import json
import random
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

ROWS = 60_000
FLAGS = (
    *("--recipe", "small", "--hidden", "32,32", "--batch-size", "256", "--epochs", "3", "--patience", "0"),
    *("--checkpoint-every", "40", "--threads", "1"),
)
LOADERS = {"device": ("--loader", "device"), "stream": ("--loader", "stream", "--loader-memory", "30MB")}


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
        synthesise("criteo", folder / "log.tsv", rows=ROWS, seed=1)
        prepare(
            Schema.preset("criteo"),
            [folder / "log.tsv"],
            folder / "data",
            options=PrepareOptions(min_count=4),
        )
        for loader, flags in LOADERS.items():
            kill_again_and_again(folder, loader, flags, kills=options.kills, draw=draw)
        fill_the_disk(folder)
    print("all held")


def command(folder: Path, run: Path, *flags: str) -> list[str]:
    """Return the command line of a run."""
    train = ["train", str(folder / "data"), "--out", str(run), *FLAGS, *flags, "--json"]
    return [sys.executable, "-m", "stampede", *train]


def kill_again_and_again(
    folder: Path, loader: str, flags: tuple[str, ...], *, kills: int, draw: random.Random
) -> None:
    """Kill and resume a run until it has been killed so often, then let it end."""
    started = time.monotonic()
    whole = subprocess.run(command(folder, folder / loader, *flags), capture_output=True, check=True)
    seconds = time.monotonic() - started
    run = folder / f"{loader}-killed"
    moments: list[str] = []
    while len(moments) < kills:
        process = subprocess.Popen(
            command(folder, run, *flags, "--resume"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            process.wait(draw.uniform(0.0, 1.1) * seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            moments.append(where(run))
        else:
            _, err = process.communicate()
            if process.returncode:
                raise SystemExit(f"{loader}: exit {process.returncode}: {err.decode()}")
            moments.append("after its end")  # then the result is given again
        process.communicate()
    last = subprocess.run(command(folder, run, *flags, "--resume"), capture_output=True, check=True)
    compare(folder / loader, run)
    first, second = json.loads(whole.stdout), json.loads(last.stdout)
    for key in ("valid", "test", "best_epoch", "steps"):
        if first[key] != second[key]:
            raise SystemExit(f"{loader}: {key} {second[key]} is not {first[key]}")
    print(f"{loader}: {len(moments)} kills held, at {', '.join(moments)}")


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
        answer = subprocess.run(command(folder, run, *keep), capture_output=True, text=True, check=False)
        last = answer.stderr.strip().splitlines()[-1]
        if answer.returncode != 1 or "the disk is full" not in last:
            raise SystemExit(f"a full disk: exit {answer.returncode}, {last}")
        print(f"full disk: {last}")
        ballast.unlink()
        resumed = [*command(folder, run, "--keep-checkpoints", "1"), "--resume"]
        subprocess.run(resumed, capture_output=True, check=True)
        compare(folder / "device", run)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


if __name__ == "__main__":
    main()
