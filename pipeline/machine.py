"""What the machine, or the container, lets a process use. Loads nothing but the standard library."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

ROOT = Path("/")


def cores(root: Path = ROOT) -> float:
    """Return the cores that the process may use: its affinity and its cgroup's quota."""
    affinity = float(len(os.sched_getaffinity(0)))
    return min([affinity, *_cgroup_limits(root, "cpu", _cpu_limit)])


def memory(root: Path = ROOT) -> int:
    """Return the memory that the process may use: the machine's and its cgroup's limit."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(min([machine, *_cgroup_limits(root, "memory", _memory_limit)]))


def _cgroup_limits(root: Path, controller: str, read: Callable[[Path], float | None]) -> Iterator[float]:
    """Yield the limits of the process's control group and of those above it, in both versions of cgroups."""
    file = root / "proc/self/cgroup"
    if not file.exists():
        return
    for line in file.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / (controller if controllers else "")
        group = PurePosixPath(path)
        # in a container the path may be the host's: what is mounted at the top is then the limit that counts
        for above in (group, *group.parents):
            limit = read(mount / str(above).lstrip("/"))
            if limit is not None:
                yield limit


def _memory_limit(group: Path) -> float | None:
    for name in ("memory.max", "memory.limit_in_bytes"):
        text = _text(group / name)
        if text is not None and text != "max":
            return int(text)
    return None


def _cpu_limit(group: Path) -> float | None:
    quota, _, period = (_text(group / "cpu.max") or "").partition(" ")
    if not quota:
        quota = _text(group / "cpu.cfs_quota_us") or "max"
        period = _text(group / "cpu.cfs_period_us") or "100000"
    return None if quota in {"max", "-1"} else int(quota) / int(period)


def _text(file: Path) -> str | None:
    try:
        return file.read_text().strip()
    except OSError:
        return None
