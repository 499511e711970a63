"""Folders appear whole or not at all: built beside their place, then renamed.

While ``data/criteo`` is being built it is ``data/.criteo.building-XXXX``, locked by its builder. A finished
folder that is to replace another is exchanged with it in one step where the file system can
(``RENAME_EXCHANGE``), else by two renames through ``.criteo.ready``; a process that dies between those two
leaves a state that :func:`finish_exchange` completes.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import glob
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from stampede import DatasetError, StampedeError

AT_FDCWD = -100
RENAME_EXCHANGE = 2

FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
PROBED_BYTES = 1 << 18


class DiskFullError(DatasetError):
    """There is no room left for what is being written to a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"the disk of {folder} is full: make room or choose another place")


@contextmanager
def building(
    target: Path,
    *,
    force: bool = False,
    replaces: Sequence[str] = (),
    confirm: Callable[[], None] | None = None,
) -> Iterator[Path]:
    """Give a folder to build in, and put it in place of ``target`` when the block ends without an error.

    On an error the folder is removed and ``target`` stays as it was. Leftovers of builders that were killed
    are removed first.

    Parameters
    ----------
    force:
        Whether an existing ``target`` is replaced.
    replaces:
        Names of which a folder must hold one, unless it is empty, to be replaced: so that a mistyped path
        does not cost a folder of another kind. Without names every folder may be.
    confirm:
        Called when nobody else puts a folder in place beside ``target``; raises where it must not be done.

    Raises
    ------
    DatasetError
        ``target`` exists and may not be replaced, or it cannot be written.
    """
    target = normal(target)
    if not target.name:
        raise DatasetError(f"{target} cannot be the dataset's folder: choose another --out")
    check_free(target, force=force, replaces=replaces)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(target)
        folder, lock = _locked_folder(target)
    except OSError as error:
        raise _cannot_write(target, error) from error
    try:
        yield folder
        folder.chmod(0o777 & ~_umask())
        _sync(folder)
        with _alone_in(target.parent):
            if confirm is not None:
                confirm()
            _put_in_place(folder, target, force=force, replaces=replaces)
    except DiskFullError as error:
        raise DiskFullError(target.parent) from error
    except StampedeError:
        raise
    except Exception as error:
        if isinstance(error, OSError) or disk_is_full(error, folder):
            raise _cannot_write(target, error) from error
        raise
    finally:
        _remove(folder)
        os.close(lock)


def check_free(target: Path, *, force: bool, replaces: Sequence[str] = ()) -> None:
    """Raise unless ``target`` may be written; see :func:`building`.

    Raises
    ------
    DatasetError
        It exists and may not be replaced.
    """
    try:
        finish_exchange(target)
        if not os.path.lexists(target):
            return
        if target.is_symlink():
            raise DatasetError(f"{target} is a link: name the folder itself")
        if not target.is_dir():
            raise DatasetError(f"{target} exists and is not a folder: choose another --out")
        if _working_folder().is_relative_to(target):
            raise DatasetError(f"{target} holds the working folder: run this from outside of it")
        if not force:
            raise DatasetError(f"{target} exists: choose another --out, or replace it with --force")
        held = {path.name for path in target.iterdir()}
    except OSError as error:
        raise _cannot_write(target, error) from error
    if replaces and held and not held.intersection(replaces):
        raise DatasetError(
            f"{target} is not a folder that --force replaces (it holds {min(held)}): choose another --out"
        )


def normal(path: Path) -> Path:
    """Return a path as it is from the root, without ``.`` and ``..`` in it."""
    return Path(os.path.abspath(path))  # noqa: PTH100 (Path.absolute keeps them)


def _working_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:  # it was removed
        return Path("/")


@contextmanager
def _alone_in(parent: Path) -> Iterator[None]:
    """Wait for others that put a folder in place there."""
    lock = os.open(parent, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _remove(folder: Path) -> None:
    """Remove a folder, those within it that cannot be written too."""
    for path, _, _ in os.walk(folder):
        with suppress(OSError):
            Path(path).chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


def finish_exchange(target: Path) -> None:
    """Complete an exchange by two renames whose process died between them."""
    ready = _ready(target.absolute())
    if ready.is_dir() and not os.path.lexists(target):
        with suppress(FileNotFoundError):  # another process was faster
            ready.rename(target)


def disk_is_full(error: BaseException, folder: Path) -> bool:
    """Whether an error that arose while ``folder`` was written comes of a full disk.

    Where the error does not tell (polars may say "transport error"), a small file is tried.
    """
    if isinstance(error, OSError) and error.errno in FULL_DISK:
        return True
    if any(f"os error {code}" in str(error) for code in FULL_DISK):  # as polars words it
        return True
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(PROBED_BYTES))
    except OSError as probe:
        return probe.errno in FULL_DISK
    return False


def _cannot_write(target: Path, error: Exception) -> DatasetError:
    if not isinstance(error, OSError) or error.errno in FULL_DISK:
        return DiskFullError(target.parent)
    return DatasetError(f"cannot write {target}: {error.strerror or error}")


def _locked_folder(target: Path) -> tuple[Path, int]:
    """Make a folder beside ``target`` and lock it."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.building-", dir=target.parent))
        with suppress(FileNotFoundError):
            lock = os.open(folder, os.O_RDONLY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.exists():  # else it was taken for a leftover before it was locked
                return folder, lock
            os.close(lock)


def _put_in_place(folder: Path, target: Path, *, force: bool, replaces: Sequence[str]) -> None:
    if not os.path.lexists(target):
        folder.rename(target)
        return
    check_free(target, force=force, replaces=replaces)
    if _exchange(folder, target):
        return  # the old folder now lies where the new one was built, and is removed with it
    ready = _ready(target)
    shutil.rmtree(ready, ignore_errors=True)
    folder.rename(ready)
    target.rename(folder)
    finish_exchange(target)


def _ready(target: Path) -> Path:
    return target.with_name(f".{target.name}.ready")


def _exchange(one: Path, other: Path) -> bool:
    """Swap two folders in one step; False where the system cannot."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    result = renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE)
    return bool(result == 0)


def _remove_leftovers(target: Path) -> None:
    """Remove what dead builders left; ``target`` is not a half-done exchange any more."""
    if target.exists():
        shutil.rmtree(_ready(target), ignore_errors=True)
    for folder in target.parent.glob(f".{glob.escape(target.name)}.building-*"):
        with suppress(OSError):
            lock = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its builder lives
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def _sync(folder: Path) -> None:
    """Flush every file of a folder to disk, so that a rename does not overtake its content."""
    for path in [*folder.rglob("*"), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
