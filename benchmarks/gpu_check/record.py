"""What the parts of a section found, line by line as they find it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class Findings:
    """Takes what a part finds and writes it down at once."""

    def __init__(self, record: Path, part: str, *, deadline: float) -> None:
        self._record, self._part, self._deadline = record, part, deadline

    def note(self, **values: Any) -> None:
        """Keep some values; a later one of a name replaces an earlier one."""
        append(self._record, part=self._part, values=values)

    def fault(self, text: str) -> None:
        """Say what is wrong: the section has failed then, and goes on."""
        append(self._record, part=self._part, fault=text)

    @property
    def seconds_left(self) -> float:
        """Until the section is stopped."""
        return self._deadline - time.monotonic()


@dataclass(frozen=True)
class Part:
    """A part of a section; it is left out where fewer seconds are left than it needs."""

    name: str
    run: Callable[[Findings], None]
    needs_seconds: float = 0.0


def append(record: Path, **event: Any) -> None:
    """Add a line."""
    with record.open("a") as lines:
        lines.write(json.dumps(_finite(event)) + "\n")


def read(record: Path) -> tuple[dict[str, dict[str, Any]], str | None]:
    """Give the parts so far, and why the section was left out, if it was."""
    parts: dict[str, dict[str, Any]] = {}
    reason = None
    for line in record.read_text().splitlines() if record.exists() else []:
        try:
            event = json.loads(line)
        except ValueError:  # its writer was killed in the middle of it
            continue
        reason = event.get("left_out_section", reason)
        if "part" not in event:
            continue
        part = parts.setdefault(event["part"], {"state": "running", "seconds": None, "faults": []})
        part.update(event.get("values", {}))
        if "fault" in event:
            part["faults"].append(event["fault"])
        for name in ("state", "seconds", "error", "reason"):
            if name in event:
                part[name] = event[name]
        if part["state"] == "ok" and part["faults"]:
            part["state"] = "failed"
    return parts, reason


def _finite(value: Any) -> Any:
    """Turn what JSON has no number for into its name."""
    if isinstance(value, dict):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
