"""One output file: written beside its place, then renamed, so that it appears whole or not at all."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stampede import StampedeError


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


@contextmanager
def working_folder(out: Path) -> Iterator[Path]:
    """Give a folder beside ``out`` to work in; it is removed when the block ends.

    Raises
    ------
    StampedeError
        The place cannot be written, or its disk is full.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as folder:
            yield Path(folder)
    except OSError as error:
        raise StampedeError(f"cannot write {out}: {error.strerror or error}") from error
