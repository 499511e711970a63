"""The parts of a section, one after the other, in a process of their own.

    python -m benchmarks.gpu_check.worker SECTION RECORD DEADLINE OPTIONS

Parts that the record has already are not run again. DEADLINE is of the system's monotonic clock.
"""

from __future__ import annotations

import gc
import sys
import time
import traceback
from pathlib import Path

from benchmarks.gpu_check.options import Options
from benchmarks.gpu_check.process import LAST_LINES, LOST_DEVICE
from benchmarks.gpu_check.record import Findings, Part, append, read
from benchmarks.gpu_check.sections import section_named


def main() -> int:
    """Run the parts that are left."""
    name, record, deadline = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
    options = Options.of_json(sys.argv[4])
    section = section_named(name)
    reason = section.missing(options)
    if reason is not None:
        append(record, left_out_section=reason)
        return 0
    done = read(record)[0]
    for part in section.parts(options):
        if part.name not in done and not _run(part, record, deadline=deadline):
            return LOST_DEVICE
    return 0


def _run(part: Part, record: Path, *, deadline: float) -> bool:
    """Run a part; give whether the device still works."""
    findings = Findings(record, part.name, deadline=deadline)
    if findings.seconds_left < part.needs_seconds:
        append(record, part=part.name, state="left out", reason=f"fewer than {part.needs_seconds:g} s left")
        return True
    append(record, part=part.name, state="running")
    started = time.monotonic()
    error = None
    try:
        part.run(findings)
        _synchronise()  # an error of a kernel is the part's that launched it
    except Exception:  # whatever it is, the other parts go on
        error = "\n".join(traceback.format_exc().splitlines()[-LAST_LINES:])
    state = "ok" if error is None else "failed"
    append(record, part=part.name, state=state, error=error, seconds=time.monotonic() - started)
    gc.collect()
    try:
        _synchronise()
    except Exception:
        return False
    return True


def _synchronise() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    sys.exit(main())
