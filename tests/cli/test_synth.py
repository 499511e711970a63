"""``stampede synth --days``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Command


def test_a_file_a_day_and_each_alone(stampede: Command, tmp_path: Path) -> None:
    out = tmp_path / "days"

    made = stampede("synth", "criteo", "--days", 3, "--rows", 400, "--out", out, "--json").json
    alone = stampede(
        "synth", "criteo", "--days", 1, "--first-day", 3, "--rows", 400, "--drift", 1,
        "--out", tmp_path / "log_{day}.tsv.gz", "--json",
    ).json  # fmt: skip

    assert [Path(file).name for file in made["files"]] == ["day_01.tsv", "day_02.tsv", "day_03.tsv"]
    assert made["rows"] == 1200
    assert made["bytes"] == sum(Path(file).stat().st_size for file in made["files"])
    assert alone["files"] == [str(tmp_path / "log_03.tsv.gz")]
    import gzip

    assert gzip.decompress(Path(alone["files"][0]).read_bytes()) == (out / "day_03.tsv").read_bytes()
    refused = stampede("synth", "criteo", "--days", 4, "--rows", 400, "--out", out)
    assert (refused.code, "day_01.tsv exists" in refused.err) == (1, True)
    assert not (out / "day_04.tsv").exists()
    again = stampede("synth", "criteo", "--days", 2, "--rows", 100, "--out", out, "--force")
    assert (again.code, "200 rows" in again.out, "day_01.tsv to day_02.tsv" in again.out) == (0, True, True)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--drift", "1"), "--drift is of use with --days only"),
        (("--first-day", "2"), "--first-day is of use with --days only"),
        (("--days", "0"), "--days 0: it must be 1 or more"),
        (("--days", "2", "--first-day", "0"), "days are numbered from 1"),
        (("--days", "2", "--drift", "-1"), "--drift -1.0: it must be between 0"),
        (("--days", "2"), "with --days name a folder, or a file with {day} in its name"),
    ],
)
def test_options_that_cannot_be(
    flags: tuple[str, ...], message: str, stampede: Command, tmp_path: Path
) -> None:
    answer = stampede("synth", "criteo", "--rows", "10", "--out", tmp_path / "log.tsv", *flags)

    assert answer.code == 2
    assert message in answer.err
    assert not list(tmp_path.iterdir())


def test_days_are_of_criteo(stampede: Command, tmp_path: Path) -> None:
    answer = stampede("synth", "avazu", "--days", "2", "--rows", "10", "--out", tmp_path / "days")
    assert (answer.code, "days that drift are of criteo" in answer.err) == (2, True)
