"""``stampede prepare``: its documents, files and one-line errors."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest

if TYPE_CHECKING:
    from tests.conftest import Command


class TestPrepare:
    def test_json(self, stampede: Command, small_log: Path, tmp_path: Path) -> None:
        answer = stampede("prepare", "criteo", small_log, "--out", tmp_path / "ds", "--json")

        assert answer.code == 0
        document = answer.json
        assert sum(document["rows"].values()) == 1500
        assert set(document) == {"rows", "fields", "rejected", "seconds"}
        assert set(document["fields"]["C1"]) == {"size", "null", "rare"}
        assert document["rejected"] == 0

    def test_table_without_json(self, stampede: Command, small_log: Path, tmp_path: Path) -> None:
        answer = stampede("prepare", "criteo", small_log, "--out", tmp_path / "ds")

        assert answer.code == 0
        assert "click rate" in answer.out
        assert "26 categorical fields" in answer.out

    def test_existing_out_is_an_error_without_force(
        self, stampede: Command, small_log: Path, tmp_path: Path
    ) -> None:
        out = tmp_path / "ds"
        stampede("prepare", "criteo", small_log, "--out", out)

        refused = stampede("prepare", "criteo", small_log, "--out", out)
        replaced = stampede("prepare", "criteo", small_log, "--out", out, "--no-counts", "--force")

        assert (refused.code, replaced.code) == (1, 0)
        assert "--force" in refused.err
        assert "C1_count" not in pl.read_parquet_schema(out / "train" / "part-00000.parquet")

    def test_recipe_gives_the_values_and_flags_replace_them(
        self, stampede: Command, small_log: Path, tmp_path: Path
    ) -> None:
        stampede(
            "prepare", "criteo", small_log, "--out", tmp_path / "ds", "--recipe", "small", "--min-count", "7"
        )  # fmt: skip

        manifest = stampede("inspect", tmp_path / "ds", "--json").json
        assert manifest["encoding"]["dense_mode"] == "log-bucket"
        assert manifest["min_count"] == 7

    def test_fraction_of_zero_leaves_a_split_out(
        self, stampede: Command, small_log: Path, tmp_path: Path
    ) -> None:
        answer = stampede(
            "prepare", "criteo", small_log, "--out", tmp_path / "ds",
            "--valid-fraction", "0", "--test-fraction", "0", "--json",
        )  # fmt: skip

        assert answer.json["rows"] == {"train": 1500}

    def test_bad_row_is_one_line_with_file_line_and_column(self, stampede: Command, tmp_path: Path) -> None:
        log = tmp_path / "log.tsv"
        log.write_text("0\t" * 39 + "\n" + "7\t" * 39 + "\n")

        answer = stampede("prepare", "criteo", log, "--out", tmp_path / "ds")

        assert answer.code == 1
        assert answer.out == ""
        errors = [line for line in answer.err.splitlines() if line.startswith("stampede: ")]
        assert len(errors) == 1
        assert f"{log}, line 2, column label" in errors[0]
        assert "Traceback" not in answer.err
        assert not list(tmp_path.glob(".*"))

    @pytest.mark.parametrize(
        "flags",
        [
            ("--test-fraction", "0.6", "--valid-fraction", "0.6"),
            ("--test-fraction", "-0.1"),
            ("--min-count", "0"),
            ("--split", "alphabetical"),
            ("--dense", "log-bucket", "--dense-null-flag"),
            ("--no-such-flag",),
        ],
    )
    def test_usage_errors_exit_2_in_one_line(
        self, stampede: Command, small_log: Path, tmp_path: Path, flags: tuple[str, ...]
    ) -> None:
        answer = stampede("prepare", "criteo", small_log, "--out", tmp_path / "ds", *flags)

        assert answer.code == 2
        assert answer.err.splitlines()[-1].startswith("stampede: ")
        assert not (tmp_path / "ds").exists()


DIRTY = Path(__file__).parents[1] / "data" / "dirty"
EXPECTED = json.loads((DIRTY / "expected.json").read_text())


@pytest.mark.parametrize("name", EXPECTED)
def test_hostile_files_end_with_the_code_that_is_expected(
    stampede: Command, tmp_path: Path, name: str
) -> None:
    expected = EXPECTED[name]

    answer = stampede("prepare", expected["preset"], DIRTY / name, "--out", tmp_path / "ds", "--json")

    codes = expected["exit"] if isinstance(expected["exit"], list) else [expected["exit"]]
    assert answer.code in codes
    if answer.code == 0 and "rows" in expected:
        assert sum(answer.json["rows"].values()) == expected["rows"]
    if "line" in expected:
        assert f"line {expected['line']}" in answer.err
    if "column" in expected:
        assert f"column {expected['column']}" in answer.err


def test_inspect_shows_each_field_and_the_splits(stampede: Command, small_dataset: Path) -> None:
    table = stampede("inspect", small_dataset).out
    document = stampede("inspect", small_dataset, "--json").json

    assert "C26" in table
    assert set(document["splits"]) == {"train", "valid", "test"}
    assert {"rows", "click_rate"} <= set(document["splits"]["train"])
    field = next(field for field in document["fields"] if field["name"] == "C3")
    assert 0 < field["null_share"] < 1
    assert 0 < field["unseen_share_of_test"] < 1
    assert field["ids_for_90_percent"] <= field["size"]


def test_a_log_of_numbers_alone_is_prepared_and_inspected_but_not_trained(
    stampede: Command, tmp_path: Path
) -> None:
    (tmp_path / "n.toml").write_text('label = "y"\ndense = ["a"]\n')
    (tmp_path / "n.csv").write_text("y,a\n" + "0,1\n1,2\n" * 20)
    data = tmp_path / "ds"

    prepared = stampede("prepare", tmp_path / "n.toml", tmp_path / "n.csv", "--out", data)
    inspected = stampede("inspect", data)
    trained = stampede("train", data, "--out", tmp_path / "run")

    assert (prepared.code, inspected.code, trained.code) == (0, 0, 2)
    assert "--dense log-bucket" in trained.err


class TestFeaturesAndLaterFiles:
    def test_features(self, stampede: Command, small_log: Path, tmp_path: Path) -> None:
        answer = stampede(
            "prepare", "criteo", small_log, "--out", tmp_path / "ds", "--cross", "C1,C2", "--cross", "C6, C9",
            "--count-features", "--target-encode", "C3", "--target-encode", "C1_x_C2", "--folds", "3",
        )  # fmt: skip

        assert answer.code == 0
        assert "28 categorical fields" in answer.out
        assert "43 dense columns" in answer.out
        encoding = stampede("inspect", tmp_path / "ds", "--json").json["encoding"]
        assert encoding["crosses"] == [["C1", "C2"], ["C6", "C9"]]
        assert (encoding["target_encoded"], encoding["folds"]) == (["C3", "C1_x_C2"], 3)

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            (("--cross", "C1"), "--cross C1: name two fields, as in --cross C1,C2"),
            (("--cross", "C1,C2,C3"), "name two fields"),
            (
                ("--cross", "C1,I1"),
                "there is no field I1: it is a number, which is a field with --dense log-bucket only",
            ),
            (("--folds", "4"), "--folds is of use with --target-encode only"),
            (("--memory-limit", "lots"), "it must be a size such as 4GB or 1500MB"),
            (("--memory-limit", "1MB"), "MB or more: so much is needed with"),
            (("--append", "more", "--force"), "--append takes neither"),
        ],
    )
    def test_options_that_cannot_be(
        self, wrong: tuple[str, ...], message: str, stampede: Command, small_log: Path, tmp_path: Path
    ) -> None:
        answer = stampede("prepare", "criteo", small_log, "--out", tmp_path / "ds", *wrong)

        assert answer.code == 2
        assert message in answer.err
        assert not list(tmp_path.iterdir())

    def test_append(self, stampede: Command, small_log: Path, tmp_path: Path) -> None:
        out = tmp_path / "ds"
        stampede("prepare", "criteo", small_log, "--out", out)
        later = tmp_path / "later.gz"
        later.write_bytes(gzip.compress(small_log.read_bytes()))

        answer = stampede("prepare", "criteo", later, "--out", out, "--append", "day_2", "--json")
        assert answer.code == 0
        assert answer.json["rows"]["day_2"] == 1500
        refused = stampede("prepare", "criteo", later, "--out", out, "--append", "day_3", "--min-count", "3")
        assert refused.code == 2
        assert "leave out --recipe and all but --out and --bad-rows" in refused.err

    def test_dry_run_writes_nothing(self, stampede: Command, small_log: Path, tmp_path: Path) -> None:
        answer = stampede("prepare", "criteo", small_log, "--out", tmp_path / "ds", "--dry-run", "--json")

        assert answer.code == 0
        assert answer.json["rows"] == 1500
        assert answer.json["disk_bytes"] == answer.json["spool_bytes"] + answer.json["dataset_bytes"]
        assert set(answer.json["ids"]) == {f"C{i}" for i in range(1, 27)}
        told = stampede("prepare", "criteo", small_log, "--out", tmp_path / "ds", "--dry-run")
        assert "nothing was written" in told.out
        assert not list(tmp_path.iterdir())

    def test_append_with_a_growing_vocabulary(
        self, stampede: Command, small_log: Path, tmp_path: Path
    ) -> None:
        out, rows = tmp_path / "ds", small_log.read_text().splitlines()
        first, second = tmp_path / "day_1.tsv", tmp_path / "day_2.tsv"
        first.write_text("\n".join(rows[:700]))
        second.write_text("\n".join(rows[700:]))
        stampede("prepare", "criteo", first, "--out", out)
        before = stampede("inspect", out, "--json").json

        refused = stampede("prepare", "criteo", second, "--out", tmp_path / "other", "--grow-vocab")
        assert (refused.code, "--grow-vocab is of use with --append only" in refused.err) == (2, True)
        refused = stampede(
            "prepare", "criteo", second, "--out", out, "--append", "day_2", "--grow-vocab", "--dense", "log"
        )
        assert (refused.code, "all but --out, --bad-rows and --min-count" in refused.err) == (2, True)

        answer = stampede(
            "prepare", "criteo", second, "--out", out, "--append", "day_2", "--grow-vocab", "--min-count", "5"
        )
        assert answer.code == 0
        after = stampede("inspect", out, "--json").json
        (growth,) = after["growths"]
        assert (growth["split"], growth["rows"], growth["min_count"]) == ("day_2", 800, 5)
        sizes = [{field["name"]: field["size"] for field in d["fields"]} for d in (before, after)]
        assert {name: sizes[1][name] - size for name, size in sizes[0].items()} == growth["ids"]
        new = sum(growth["ids"].values())
        assert new > 20
        assert f"{new:,} of them are new (most of" in answer.out
        shown = stampede("inspect", out).out
        assert "grown with  rows  min-count  new ids" in shown
        assert "are of the training rows and those of day_2" in shown
