"""``stampede export`` on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Command


@pytest.fixture(scope="module")
def run(small_run: Path) -> Path:
    return small_run


def test_export_prints_one_document(stampede: Command, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "model"
    answer = stampede("export", run, "--out", out, "--format", "torch", "--json")

    assert answer.code == 0
    assert answer.json["out"] == str(out)
    assert answer.json["format"] == "torch"
    assert answer.json["bytes"] == out.stat().st_size
    assert answer.json["max_difference"] <= 1e-5
    assert answer.json["rows_checked"] > 100

    again = stampede("export", run, "--out", out, "--format", "torch")
    assert again.code == 1
    assert "exists: choose another --out, or replace it with --force" in again.err


def test_export_help_and_a_name_without_a_format(stampede: Command, run: Path, tmp_path: Path) -> None:
    assert "Example: stampede export" in stampede("export", "--help").out
    answer = stampede("export", run, "--out", tmp_path / "model.txt")

    assert answer.code == 2
    assert answer.err.count("\n") == 1
