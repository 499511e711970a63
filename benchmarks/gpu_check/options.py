"""The sizes and limits of a check, as arguments."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    """What the sections take; the defaults of :func:`parse` are for one H200."""

    device: str
    batch_sizes: tuple[int, ...]
    table_rows: tuple[int, ...]
    precisions: tuple[str, ...]
    steps: int
    compile_batch_size: int
    hidden: tuple[int, ...]
    epoch_rows: int
    held_out_rows: int
    epoch_table_rows: int
    epoch_batch_size: int
    epochs: int
    log_rows: int
    log_batch_size: int
    log_epochs: int
    log_recipes: tuple[str, ...]
    log_precision: str

    @classmethod
    def of_json(cls, text: str) -> Self:
        """Read what :meth:`to_json` wrote."""
        read: dict[str, Any] = json.loads(text)
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in read.items()}
        return cls(**values)

    def to_json(self) -> str:
        """Write them for a worker."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Run:
    """What is to be done: the sections, their limits in seconds, where the result goes."""

    result: Path
    sections: tuple[str, ...]
    limits: dict[str, float]
    part_limit: float
    seconds: float


def parse(words: list[str] | None, limits: dict[str, float]) -> tuple[Run, Options]:
    """Read the command line; ``limits`` has the sections and their usual limits."""
    parser = argparse.ArgumentParser(
        prog="benchmarks/gpu_check.sh",
        description="Check and time everything that needs a GPU; write one JSON document.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    default_result = Path(os.environ.get("OUT", "."), "gpu_check.json")
    add = parser.add_argument
    add("result", nargs="?", type=Path, default=default_result, help="the document to write")
    add("--device", default="cuda", help="cpu tries the script itself: no kernels, no graphs")
    add("--sections", type=_list_of(str), default=tuple(limits), help="which, in this order")
    add("--limit", action="append", default=[], metavar="SECTION=SECONDS", help="in place of the usual one")
    add("--part-limit", type=float, default=75.0, help="seconds of one part of a section")
    add("--seconds", type=float, default=465.0, help="of everything")
    step = parser.add_argument_group("step")
    add = step.add_argument
    add("--batch-sizes", type=_list_of(int), default=(1024, 8192, 65_536, 131_072), help="rows a step")
    add("--table-rows", type=_list_of(int), default=(1_000_000, 33_762_577), help="of the embedding table")
    add("--precisions", type=_list_of(str), default=("float32", "bf16", "tf32"), help="of the products")
    add("--steps", type=int, default=30, help="that are timed")
    add("--compile-batch-size", type=int, default=8192, help="with torch.compile")
    add("--hidden", type=_list_of(int), default=(400, 400, 400), help="widths of DeepFM's MLP")
    add = parser.add_argument_group("epoch").add_argument
    add("--epoch-rows", type=int, default=40_000_000, help="rows to train on, where memory allows")
    add("--held-out-rows", type=int, default=2_000_000, help="rows to evaluate on")
    add("--epoch-table-rows", type=int, default=33_762_577, help="of the embedding table")
    add("--epoch-batch-size", type=int, default=131_072, help="rows a step")
    add("--epochs", type=int, default=10, help="with CowClip, where time allows")
    add = parser.add_argument_group("train and prepare").add_argument
    add("--log-rows", type=int, default=300_000, help="rows of the synthetic log")
    add("--log-batch-size", type=int, default=8192, help="rows a step")
    add("--log-epochs", type=int, default=4, help="of train")
    add("--log-recipes", type=_list_of(str), default=("small", "criteo"), help="the first one in full")
    add("--log-precision", default="bf16", help="of the products")
    values = vars(parser.parse_args(words))
    chosen = dict(limits)
    for text in values.pop("limit"):
        name, _, seconds = text.partition("=")
        try:
            chosen[name] = float(seconds)
        except ValueError:
            parser.error(f"--limit {text}: SECTION=SECONDS is wanted")
    unknown = sorted({*values["sections"], *chosen} - set(limits))
    if unknown:
        parser.error(f"there is no section {unknown[0]}: choose of {', '.join(limits)}")
    run = Run(
        result=values.pop("result"),
        sections=values.pop("sections"),
        limits=chosen,
        part_limit=values.pop("part_limit"),
        seconds=values.pop("seconds"),
    )
    return run, Options(**values)


def _list_of(kind: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    def read(text: str) -> tuple[T, ...]:
        return tuple(kind(word) for word in text.split(",") if word)

    read.__name__ = f"comma-separated {kind.__name__}"  # argparse says it in its error
    return read
