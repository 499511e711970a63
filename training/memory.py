"""How much memory is left to this process."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath


def available_memory(root: Path = Path("/")) -> int:
    """Return the bytes that the process may still take: what the machine and its control groups have left."""
    machine = _figures(root / "proc/meminfo").get("MemAvailable:")
    left = [
        machine * 1024 if machine is not None else os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    ]
    for line in (_text(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        # version 2 has one tree for all controllers, version 1 one each
        mount = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        limit, used, cache = (
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            if controllers
            else ("memory.max", "memory.current", "inactive_file")
        )
        # in a container the path may be the host's: what is mounted at the top is then the limit that counts
        for group in (PurePosixPath(path), *PurePosixPath(path).parents):
            folder = mount / str(group).lstrip("/")
            most, taken = _text(folder / limit), _text(folder / used)
            if most is not None and most.isdigit() and taken is not None:
                left.append(int(most) - int(taken) + _figures(folder / "memory.stat").get(cache, 0))
    return max(0, min(left))


def _figures(file: Path) -> dict[str, int]:
    """Return the lines of a file of names and figures."""
    words = (line.split() for line in (_text(file) or "").splitlines())
    return {name: int(figure) for name, figure, *_ in words if figure.isdigit()}


def _text(file: Path) -> str | None:
    try:
        return file.read_text().strip()
    except OSError:
        return None
