"""Every file of the set of small hostile inputs gives what its expected.json says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.pipeline.logs import (
    DATA,
    EVERY_ROW,
    KEEP_ALL,
    assert_same_dataset,
    memory_folder,
    parts,
    refusal,
    rejected,
    values,
)

from stampede import InputError
from stampede.pipeline import Dataset, DenseMode, PrepareOptions, Schema, prepare

DIRTY = DATA / "dirty"
EXPECTED: dict[str, dict[str, Any]] = json.loads((DIRTY / "expected.json").read_text())
DEFAULTS = PrepareOptions()


def names(**conditions: Any) -> list[str]:
    """Names of the files whose expectation has these keys; a value of ... stands for any."""
    return [
        name
        for name, facts in EXPECTED.items()
        if all(key in facts and wanted in (..., facts[key]) for key, wanted in conditions.items())
    ]


def prepared(name: str, folder: Path, options: PrepareOptions = DEFAULTS) -> Dataset:
    schema = Schema.preset(EXPECTED[name]["preset"])
    return prepare(schema, [DIRTY / name], folder / f"{name}.out", options=options, force=True)


def test_every_file_of_the_set_has_an_expectation() -> None:
    assert EXPECTED.keys() == {path.name for path in DIRTY.iterdir()} - {"README.md", "expected.json"}


@pytest.fixture(scope="module")
def clean() -> Iterator[Dataset]:
    """The dataset of clean.tsv, which many files of the set must give too."""
    with memory_folder() as folder:
        yield prepared("clean.tsv", folder)


@pytest.mark.parametrize("name", names(exit=0))
def test_a_usable_file_gives_all_its_rows(name: str, clean: Dataset, tmp_path: Path) -> None:
    dataset = prepared(name, tmp_path, PrepareOptions(bad_rows="skip"))

    assert sum(dataset.rows.values()) == EXPECTED[name]["rows"]
    assert not rejected(dataset)
    if "same_as" in EXPECTED[name]:
        assert EXPECTED[name]["same_as"] == "clean.tsv"
        assert_same_dataset(dataset, clean)


@pytest.mark.parametrize("name", names(same_as=...))
def test_a_file_written_otherwise_is_as_good_where_bad_rows_stop_the_job(
    name: str, clean: Dataset, tmp_path: Path
) -> None:
    assert_same_dataset(prepared(name, tmp_path), clean)


@pytest.mark.parametrize("name", names(vocab=...))
def test_values_survive_as_text(name: str, tmp_path: Path) -> None:
    dataset = prepared(name, tmp_path, PrepareOptions(fit_on="all", min_count=1))

    for field, counts in EXPECTED[name]["vocab"].items():
        assert values(dataset, field).items() >= counts.items()


@pytest.mark.parametrize("name", names(vocab_size=...))
def test_a_vocabulary_has_the_expected_size(name: str, tmp_path: Path) -> None:
    dataset = prepared(name, tmp_path)

    for field, size in EXPECTED[name]["vocab_size"].items():
        assert dataset.sizes[field] == size
    nulls = {info.name: info.null for info in dataset.manifest.fields}
    assert nulls["C7"] == dataset.rows["train"]


@pytest.mark.parametrize("mode", [mode for mode in DenseMode if mode != DenseMode.LOG_BUCKET])
@pytest.mark.parametrize("name", names(finite=True))
def test_every_dense_output_is_finite(name: str, mode: DenseMode, tmp_path: Path) -> None:
    dataset = prepared(name, tmp_path, PrepareOptions(dense_mode=mode))

    for frame in parts(dataset).values():
        assert frame.select(pl.col(dataset.dense_columns).is_finite().all()).row(0) == (True,) * 13


@pytest.mark.parametrize("name", names(exit=1))
def test_an_unusable_file_is_refused_at_its_place(name: str, tmp_path: Path) -> None:
    facts = EXPECTED[name]
    error = refusal(tmp_path, [DIRTY / name], schema=Schema.preset(facts["preset"]), options=DEFAULTS)

    if name != "one_row.tsv":
        assert isinstance(error, InputError)
        assert error.file == str(DIRTY / name)
        assert str(error).startswith(f"{DIRTY / name}")
    for place in ("line", "column"):
        if place in facts:
            assert getattr(error, place) == facts[place]
            assert f"{place} {facts[place]}" in str(error)


@pytest.mark.parametrize("name", names(line=...))
def test_a_bad_row_can_be_left_out_and_is_listed(name: str, tmp_path: Path) -> None:
    facts = EXPECTED[name]
    lines = (DIRTY / name).read_bytes().split(b"\n")
    good = tmp_path / "good"
    good.write_bytes(b"\n".join(lines[: facts["line"] - 1] + lines[facts["line"] :]))

    dataset = prepared(name, tmp_path, replace(DEFAULTS, bad_rows="skip"))

    (row,) = rejected(dataset)
    assert (row["file"], row["line"], row["column"]) == (name, facts["line"], facts.get("column"))
    assert row["text"].encode() == lines[facts["line"] - 1]
    assert row["reason"]
    assert dataset.manifest.rejected == 1
    schema = Schema.preset(facts["preset"])
    assert_same_dataset(dataset, prepare(schema, [good], tmp_path / "good.out", options=DEFAULTS))


def test_a_row_that_is_not_utf8_is_refused_or_left_out(tmp_path: Path) -> None:
    criteo = Schema.preset("criteo")
    error = refusal(tmp_path, [DIRTY / "not_utf8.tsv"], schema=criteo)
    skipped = prepared("not_utf8.tsv", tmp_path, PrepareOptions(split=EVERY_ROW, bad_rows="skip"))

    (row,) = rejected(skipped)
    assert error.line == row["line"]
    assert "not UTF-8" in str(error)
    assert skipped.rows["train"] == 23


def test_a_nul_byte_is_part_of_its_value(tmp_path: Path) -> None:
    dataset = prepared("nul_byte.tsv", tmp_path, KEEP_ALL)

    assert dataset.rows == {"train": 24}
    assert any("\0" in value for field in dataset.fields for value in values(dataset, field))
