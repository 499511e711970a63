"""Run the sections and write the document: ``benchmarks/gpu_check.sh``."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.options import parse
from benchmarks.gpu_check.process import run_section
from benchmarks.gpu_check.sections import LIMITS
from benchmarks.gpu_check.table import lines_of


def main(words: list[str] | None = None) -> int:
    """Run; give the exit code."""
    run, options = parse(words, LIMITS)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    started = time.monotonic()
    document: dict[str, Any] = {
        "ok": False,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": 0.0,
        "options": asdict(options),
        "sections": {},
    }
    _write(run.result, document)  # a place that cannot be written to is an error now, not in eight minutes
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as name:
        for section in run.sections:
            if _has_no_device(document):
                reason = "there is no such device, as environment says; --device cpu runs what a CPU can"
                document["sections"][section] = {
                    "state": "left out", "seconds": 0.0, "error": None, "reason": reason, "parts": {},
                }  # fmt: skip
                continue
            left = run.seconds - (time.monotonic() - started)
            print(f"{section} ...", file=sys.stderr, flush=True)
            document["sections"][section] = run_section(
                section,
                options,
                folder=Path(name),
                limit=max(0.0, min(run.limits[section], left)),
                part_limit=run.part_limit,
            )
            document["seconds"] = time.monotonic() - started
            _write(run.result, document)  # what is done stands there, whatever comes
    document["ok"] = all(section["state"] != "failed" for section in document["sections"].values())
    _write(run.result, document)
    for line in lines_of(document):
        print(line)
    print(run.result)
    return 0 if document["ok"] else 1


def _has_no_device(document: dict[str, Any]) -> bool:
    """Whether the section that looks for the device has not found it."""
    parts = document["sections"].get("environment", {}).get("parts", {})
    return bool(parts.get("device", {}).get("state") == "failed")


def _write(file: Path, document: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f".{file.name}.new")
    beside.write_text(json.dumps(document, indent=1) + "\n")
    beside.replace(file)


if __name__ == "__main__":
    sys.exit(main())
