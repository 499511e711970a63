"""How much memory a job may take: what it was given, or a part of what the machine or container has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import polars as pl
from pydantic import ByteSize, TypeAdapter, ValidationError

from stampede import ConfigError
from stampede.pipeline import machine

SHARE_OF_MACHINE = 0.5

PREFETCH_VARIABLE = "POLARS_ROW_GROUP_PREFETCH_SIZE"

# What reading, encoding and writing take whatever the input: the process, and what each thread works on.
FIXED_BYTES = 650_000_000
FIXED_BYTES_PER_THREAD = 50_000_000
LEAST_WORKING_BYTES = 100_000_000

# Of a distinct value, besides its text: measured with Polars 2.1.
BYTES_PER_COUNTED_VALUE = 160
BYTES_PER_ENCODED_VALUE = 140


def parse_bytes(text: str, *, flag: str = "--memory-limit") -> int:
    """Return the number of bytes of a size such as 1GB, 500MB or 1.5GiB, given by a flag.

    Raises
    ------
    ConfigError
        It is none.
    """
    try:
        size = int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError as error:
        raise ConfigError(f"{flag} {text}: it must be a size such as 4GB or 1500MB") from error
    return size


@contextmanager
def reading_little_ahead() -> Iterator[None]:
    """Have Polars decode few row groups ahead of what it works on, which takes memory and saves no time here.

    Where the user has set its variable, that holds.
    """
    if PREFETCH_VARIABLE in os.environ:
        yield
        return
    os.environ[PREFETCH_VARIABLE] = "2"
    try:
        yield
    finally:
        os.environ.pop(PREFETCH_VARIABLE, None)


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
        return max(int(machine.memory() * SHARE_OF_MACHINE) - fixed, LEAST_WORKING_BYTES)
    if limit < fixed + LEAST_WORKING_BYTES:
        threads = pl.thread_pool_size()
        fewer = ", or have fewer threads (POLARS_MAX_THREADS=2)" if threads > 2 else ""
        raise ConfigError(
            f"--memory-limit {limit / 1e6:.10g}MB: give {(fixed + LEAST_WORKING_BYTES) // 1_000_000}MB or "
            f"more: so much is needed with {threads} threads{fewer}"
        )
    return limit - fixed
