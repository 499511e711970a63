"""How much memory a job may take: what it was given, or a part of what the machine or container has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import polars as pl
from pydantic import ByteSize, TypeAdapter, ValidationError

from stampede import ConfigError

OWN_GROUPS = Path("/proc/self/cgroup")
CONTROL_GROUPS = Path("/sys/fs/cgroup")
SHARE_OF_MACHINE = 0.5

# What reading, encoding and writing take whatever the input: the process, and what each thread works on.
FIXED_BYTES = 600_000_000
FIXED_BYTES_PER_THREAD = 50_000_000
LEAST_WORKING_BYTES = 100_000_000

# Of a distinct value, besides its text: measured with Polars 2.1.
BYTES_PER_COUNTED_VALUE = 160
BYTES_PER_ENCODED_VALUE = 140


def parse_bytes(text: str) -> int:
    """Return the number of bytes of a size such as 1GB, 500MB or 1.5GiB.

    Raises
    ------
    ConfigError
        It is none.
    """
    try:
        size = int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError as error:
        raise ConfigError(f"--memory-limit {text}: it must be a size such as 4GB or 500MB") from error
    return size


def memory_of_machine() -> int:
    """Return the bytes of memory that this process can have: the machine's, or its control group's limit."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *_control_group_limits()])


def _control_group_limits() -> Iterator[int]:
    try:
        groups = OWN_GROUPS.read_text("utf-8").splitlines()
    except OSError:
        return
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            folder, name = CONTROL_GROUPS, "memory.max"
        elif "memory" in controllers.split(","):
            folder, name = CONTROL_GROUPS / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = folder / path.lstrip("/")
        for parent in (group, *group.parents):
            if not parent.is_relative_to(folder):
                break
            try:
                text = (parent / name).read_text("utf-8").strip()
            except OSError:
                continue
            if text.isdecimal():
                yield int(text)


def fixed_memory() -> int:
    """Return the bytes that a job takes whatever its vocabularies."""
    return FIXED_BYTES + FIXED_BYTES_PER_THREAD * pl.thread_pool_size()


def working_memory(limit: int | None) -> int:
    """Return the bytes that vocabularies and counts may take at a time.

    Parameters
    ----------
    limit:
        Bytes of memory that the job may take in all; None for half of what there is.

    Raises
    ------
    ConfigError
        The limit is too low for this number of threads.
    """
    fixed = fixed_memory()
    if limit is None:
        return max(int(memory_of_machine() * SHARE_OF_MACHINE) - fixed, LEAST_WORKING_BYTES)
    if limit < fixed + LEAST_WORKING_BYTES:
        least = (fixed + LEAST_WORKING_BYTES) // 1_000_000
        raise ConfigError(
            f"--memory-limit {limit // 1_000_000}MB: {pl.thread_pool_size()} threads need {least}MB "
            "(POLARS_MAX_THREADS=2 or so makes them fewer)"
        )
    return limit - fixed
