"""Lines as a run writes them, for runs that are too small to have many."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LOWER_BOUNDS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536)


def tables_line(step: int, epoch: int, fields: Sequence[str], *, clipped: bool = True) -> dict[str, Any]:
    """A record of the tables: rare ids are clipped more, and less as steps go by."""
    frequency = [
        {
            "from": lower,
            "to": None if lower == LOWER_BOUNDS[-1] else 4 * lower - 1,
            "rows": 2000 // (index + 1),
            "clipped": round(2000 // (index + 1) * math.exp(-index - step / 300) * 0.6),
            "mean_factor": 1 - 0.5 * math.exp(-index / 2 - step / 300),
        }
        for index, lower in enumerate(LOWER_BOUNDS)
    ]
    return {
        "kind": "tables",
        "step": step,
        "epoch": epoch,
        "fields": {
            name: {
                "gradient_norm": 0.3 * (1 + index % 7) ** 2 / (1 + step / 100),
                "weight_norm": 0.1 * (1 + index % 5) * math.sqrt(step),
                "rows": 100 + 37 * index,
                "clipped": (index * 7) % 50 if clipped else 0,
            }
            for index, name in enumerate(fields)
        },
        "frequency": frequency if clipped else None,
        "dense": {"gradient_norm": 0.5 + 0.1 * math.sin(step), "weight_norm": 20 + step / 50},
    }


def write_lines(file: Path, documents: Sequence[dict[str, Any]]) -> None:
    """Write one JSON object a line."""
    file.write_text("".join(json.dumps(document) + "\n" for document in documents), "utf-8")


def add_records(run: Path, *, fields: Sequence[str], every: int, clipped: bool = True) -> None:
    """Add what a run of a later version writes besides: tables, and timings."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    steps = [line for line in lines if line["kind"] == "step"]
    last, epochs = steps[-1]["step"], steps[-1]["epoch"]
    lines += [
        tables_line(step, 1 + (step - 1) * epochs // last, fields, clipped=clipped)
        for step in range(every, last + 1, every)
    ]
    lines.sort(key=lambda line: (line["step"], line["kind"] in ("epoch", "result"), line["kind"] == "result"))
    write_lines(run / "metrics.jsonl", lines)
    write_lines(
        run / "timings.jsonl",
        [
            {"step": line["step"], "epoch": line["epoch"], "rows": 1024 * line["step"],
             "seconds": 2 + 0.012 * line["step"] + 0.01 * math.sin(line["step"])}
            for line in steps
        ],
    )  # fmt: skip
