"""Output files, which appear whole or not at all, and folders that one process at a time works on."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stampede import CheckpointError, StampedeError
from stampede.pipeline.errors import READ_ERRORS
from stampede.pipeline.publish import DiskFullError, disk_is_full

LOCK = ".lock"


def check_free(out: Path, *, force: bool) -> None:
    """Raise unless a file may be written there.

    Raises
    ------
    StampedeError
        Something is there and ``force`` is not set, or it is a folder.
    """
    if out.is_dir():
        raise StampedeError(f"{out} is a folder: choose another --out")
    if out.exists() and not force:
        raise StampedeError(f"{out} exists: choose another --out, or replace it with --force")


def make_parent(out: Path) -> None:
    """Make the folder that a file is to lie in.

    Raises
    ------
    StampedeError
        It cannot be made.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_write(out, error) from error


@contextmanager
def working_folder(out: Path) -> Iterator[Path]:
    """Give a folder beside ``out`` to work in; it is removed when the block ends.

    Raises
    ------
    StampedeError
        The place cannot be written, or its disk is full.
    """
    make_parent(out)
    try:
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as folder:
            try:
                yield Path(folder)
            except DiskFullError as error:
                raise DiskFullError(out.parent) from error
            except READ_ERRORS as error:
                if disk_is_full(error, Path(folder)):
                    raise DiskFullError(out.parent) from error
                raise
    except OSError as error:
        raise _cannot_write(out, error) from error


@contextmanager
def hold_folder(path: Path) -> Iterator[None]:
    """Let one process work on a folder at a time; one that dies lets go of it.

    Raises
    ------
    CheckpointError
        Another one works on it, or it cannot be written.
    """
    try:
        file = (path / LOCK).open("w")
    except OSError as error:
        raise CheckpointError(f"cannot write to {path}: {error.strerror or error}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CheckpointError(f"another process works on {path}: wait for it, or stop it") from None
        yield


def _cannot_write(out: Path, error: OSError) -> StampedeError:
    return StampedeError(f"cannot write {out}: {error.strerror or error}")
