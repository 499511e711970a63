"""The folder that an output file is made in."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from stampede import StampedeError
from stampede.pipeline.publish import DiskFullError
from stampede.workflows.files import working_folder


def test_it_lies_beside_the_file_and_is_removed(tmp_path: Path) -> None:
    out = tmp_path / "new" / "scores.csv"

    with working_folder(out) as folder:
        assert folder.parent == out.parent

    assert list(out.parent.iterdir()) == []


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        pl.exceptions.ComputeError("No space left on device (os error 28)"),
        DiskFullError(Path("somewhere/deep/inside")),
    ],
)
def test_a_full_disk_is_told_by_the_folder_of_the_file(tmp_path: Path, error: Exception) -> None:
    with (
        pytest.raises(DiskFullError, match=f"the disk of {tmp_path} is full"),
        working_folder(tmp_path / "scores.csv"),
    ):
        raise error

    assert list(tmp_path.iterdir()) == []


def test_another_error_names_the_file(tmp_path: Path) -> None:
    out = tmp_path / "scores.csv"

    with pytest.raises(StampedeError, match=f"cannot write {out}: Permission denied"), working_folder(out):
        raise PermissionError(13, "Permission denied")
