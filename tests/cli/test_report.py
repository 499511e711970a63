"""``stampede report`` as it is called: documents, lines, exit codes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Command


@pytest.fixture(scope="module")
def run(small_run: Path) -> Path:
    return small_run


def test_json_is_one_document_and_its_metrics_are_those_of_evaluate(stampede: Command, run: Path) -> None:
    evaluated = stampede("evaluate", run, "--json").json

    answer = stampede("report", run, "--json")

    assert answer.code == 0
    assert answer.json == {
        "out": str(run / "report.html"),
        "split": "test",
        "auc": evaluated["auc"],
        "logloss": evaluated["logloss"],
    }
    assert (run / "report.html").stat().st_size < 8_000_000


def test_without_json_it_names_the_file_last(stampede: Command, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "page.html"

    answer = stampede("report", run, "--out", out, "--split", "valid")

    assert answer.out.splitlines()[0].startswith("valid: AUC 0.")
    assert answer.out.splitlines()[-1] == str(out)
    assert out.exists()


def test_errors_are_one_line(stampede: Command, run: Path, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("a thesis")

    answers = [
        stampede("report", tmp_path),
        stampede("report", run, "--out", tmp_path / "page.html"),
        stampede("report", run, "--split", "later"),
        stampede("report", run, "--data", tmp_path),
    ]

    assert [answer.code for answer in answers] == [1] * len(answers)
    assert all(answer.err.splitlines()[-1].startswith("stampede: ") for answer in answers)
    assert all("Traceback" not in answer.err for answer in answers)
    assert (tmp_path / "page.html").read_text() == "a thesis"
