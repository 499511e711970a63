"""Rows in memory are encoded as the same rows of a file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from stampede import InputError
from stampede.pipeline import Dataset, DenseMode, Encoder, PrepareOptions, Schema, prepare
from stampede.pipeline.encode_rows import RowEncoder
from stampede.pipeline.transform import transform

LOG = [
    ["1", "3", "0.5", "a", "x", "14102100"],
    ["0", "", "-2", "a", "", "14102101"],
    ["0", "7", "1e3", "b", "x", "14102102"],
    ["1", "9", "", "ü", "a b", "14102103"],
    ["0", "100", "2", "b", "007", "14102110"],
    ["1", "3", "0", "a", "7", "14102111"],
    ["0", "3", "NA", "NA", "1.50", "14102123"],
] * 6
COLUMNS = ("label", "I1", "I2", "C1", "C2", "when")
SCHEMA = Schema(
    name="log", label="label", dense=("I1", "I2"), categorical=("C1", "C2"), time="when", null_values=("NA",)
)
OPTIONS = {
    "log": PrepareOptions(min_count=2),
    "buckets": PrepareOptions(dense_mode=DenseMode.LOG_BUCKET, hash_buckets=3),
    "features": PrepareOptions(
        dense_mode=DenseMode.STANDARD,
        dense_null_flag=True,
        crosses=(("C1", "C2"),),
        count_features=True,
        target_encode=("C1",),
    ),
}


@pytest.fixture(scope="module", params=OPTIONS)
def encoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    folder = tmp_path_factory.mktemp("log")
    (folder / "log.tsv").write_text("".join("\t".join(row) + "\n" for row in LOG))
    prepare(SCHEMA, [folder / "log.tsv"], folder / "dataset", options=OPTIONS[request.param])
    return Encoder.of_dataset(Dataset.open(folder / "dataset"))


def of_file(encoder: Encoder, file: Path, tmp_path: Path) -> pl.DataFrame:
    return pl.read_parquet(transform(encoder, [file], tmp_path).file)


numbers = st.one_of(
    st.sampled_from(
        ["", "NA", " NA", "0", "-0", "3", " 3 ", "1e3", "1E-400", "0.1", "-2", "12345678901234567890"]
    ),
    st.integers(-(10**30), 10**30).map(str),
    st.floats(-1e38, 1e38).map(repr),
)
plain = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\t\0"), max_size=12)
values = st.one_of(st.sampled_from(["a", "b", "ü", "x", "a b", "007", "7", "1.50", "NA", ""]), plain)
times = st.sampled_from(["14102100", " 14102105", "2014-10-21 03:00:00", "1413849600"])
rows_of_text = st.lists(
    st.fixed_dictionaries({"I1": numbers, "I2": numbers, "C1": values, "C2": values, "when": times}),
    min_size=1,
    max_size=5,
)


@given(rows=rows_of_text)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rows_are_encoded_as_a_text_file(
    encoder: Encoder, rows: list[dict[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    lines = ["\t".join(COLUMNS), *("\t".join(["0", *(row[name] for name in COLUMNS[1:])]) for row in rows)]
    (folder / "rows.tsv").write_bytes("".join(f"{line}\n" for line in lines).encode())

    assert_frame_equal(RowEncoder(encoder).encode(rows), of_file(encoder, folder / "rows.tsv", folder))


anything = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@given(rows=st.lists(st.fixed_dictionaries({"I1": st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
                                            "C1": st.one_of(st.none(), anything),
                                            "C2": st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))}),
                     min_size=1, max_size=5))  # fmt: skip
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rows_are_encoded_as_a_parquet_file_with_tabs_line_ends_and_integers(
    encoder: Encoder, rows: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    kinds = {"I1": pl.Int64, "C1": pl.String, "C2": pl.Int64}
    frame = pl.DataFrame(rows, schema=kinds).with_columns(
        when=pl.lit("14102100"), I2=pl.lit(None, pl.Float64)
    )
    frame.write_parquet(folder / "rows.parquet")

    encoded = RowEncoder(encoder).encode([{**row, "when": "14102100"} for row in rows])

    assert_frame_equal(encoded, of_file(encoder, folder / "rows.parquet", folder))


def test_booleans_and_fractions_are_what_they_are_in_a_parquet_file(encoder: Encoder, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"I1": True, "I2": 0.1, "C1": True, "C2": None, "when": 14102100},
        {"I1": False, "I2": -1e30, "C1": False, "C2": "x", "when": 14102101},
    ]
    pl.DataFrame(rows).write_parquet(tmp_path / "rows.parquet")

    assert_frame_equal(
        RowEncoder(encoder).encode(rows), of_file(encoder, tmp_path / "rows.parquet", tmp_path)
    )


def test_labels_are_not_looked_at_and_no_rows_give_none(encoder: Encoder) -> None:
    rows = RowEncoder(encoder)
    one = {"C1": "a", "when": "14102100"}

    assert_frame_equal(rows.encode([one]), rows.encode([{**one, "label": {"any": "thing"}}]))
    assert rows.encode([]).shape == (0, len(encoder.columns(counts=False)))
    assert rows.encode([]).schema == rows.encode([one]).schema


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"C9": "a"}, "column C9: the model's log has no such column"),
        ({"\ud800": "a"}, r"column \\ud800: the model's log has no such column"),
        ({"I1": "abc"}, "column I1: 'abc' is not a finite number within float32"),
        ({"I1": "a\tb"}, "column I1: 'a b' is not a finite number"),
        ({"I2": math.nan}, "column I2: 'nan' is not a finite number"),
        ({"I2": "1" * 50}, "column I2: '1+' is not a finite number"),
        ({"I2": 10**5000}, "column I2: the number has too many digits"),
        ({"when": "yesterday"}, "column when: 'yesterday' is not a time"),
        ({"when": None}, "column when: '' is not a time"),
        ({"C1": 0.5}, "column C1: a fraction has no text of its own"),
        ({"C1": ["a"]}, "column C1: a value must be a string, a number, true, false or null"),
        ({"C2": {}}, "column C2: a value must be"),
        ({"C2": "\udfff"}, "column C2: the value is not UTF-8 text"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(encoder: Encoder, row: dict[str, Any], words: str) -> None:
    good = {"C1": "a", "when": "14102100"}

    with pytest.raises(InputError, match=f"^row 1, {words}"):
        RowEncoder(encoder).encode([good, {**good, **row}])
