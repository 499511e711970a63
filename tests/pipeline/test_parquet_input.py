"""Parquet input: columns by name, each read as the text that a log of the same rows would hold."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.pipeline.logs import EVERY_ROW, SKIP, TIMED, parts, refusal, rejected, values

from stampede import InputError, SchemaError
from stampede.pipeline import Dataset, DenseMode, PrepareOptions, Schema, prepare

RAW = PrepareOptions(split=EVERY_ROW, min_count=1, dense_mode=DenseMode.NONE, dense_null_flag=True)
SCHEMA = Schema(name="p", label="y", dense=("n",), categorical=("a",))


def prepare_frame(folder: Path, schema: Schema = SCHEMA, **columns: Any) -> Dataset:
    frame = pl.DataFrame({"y": [1, 0], "n": [1, 2], "a": ["x", "y"]} | columns)
    frame.write_parquet(folder / "log.parquet")
    return prepare(schema, [folder / "log.parquet"], folder / "out", options=RAW)


@pytest.mark.parametrize(
    "labels",
    [
        pl.Series([1, 0], dtype=pl.UInt8),
        pl.Series([1, -1], dtype=pl.Int64),
        pl.Series([1.0, 0.0], dtype=pl.Float32),
        pl.Series([True, False]),
        pl.Series(["1", "0"]),
        pl.Series(["true", "false"], dtype=pl.Categorical),
        pl.Series([Decimal("1.00"), Decimal("0.00")]),
    ],
    ids=lambda series: str(series.dtype),
)
def test_a_label_may_be_of_many_types(labels: pl.Series, tmp_path: Path) -> None:
    assert parts(prepare_frame(tmp_path, y=labels))["train"]["label"].to_list() == [1, 0]


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        (pl.Series([7, None], dtype=pl.UInt64), [7.0, 0.0]),
        (pl.Series([-7, 2**62], dtype=pl.Int64), [-7.0, 2.0**62]),
        (pl.Series([0.1, None], dtype=pl.Float32), [0.1, 0.0]),
        (pl.Series([1e-300, -2.5], dtype=pl.Float64), [0.0, -2.5]),
        (pl.Series([True, False]), [1.0, 0.0]),
        (pl.Series(["3", " 4.5 "]), [3.0, 4.5]),
        (pl.Series([Decimal("1.25"), None]), [1.25, 0.0]),
        (pl.Series([None, None]), [0.0, 0.0]),
    ],
    ids=lambda value: str(value.dtype) if isinstance(value, pl.Series) else "",
)
def test_a_dense_column_may_be_of_many_types(
    numbers: pl.Series, expected: list[float], tmp_path: Path
) -> None:
    rows = parts(prepare_frame(tmp_path, n=numbers))["train"]

    assert rows["n"].to_list() == pl.Series(expected, dtype=pl.Float32).to_list()
    assert rows["n_null"].to_list() == [float(number is None) for number in numbers]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pl.Series([2**64 - 1, None], dtype=pl.UInt64), {"18446744073709551615": 1}),
        (pl.Series([-1, 5], dtype=pl.Int8), {"-1": 1, "5": 1}),
        (pl.Series([True, None]), {"true": 1}),
        (pl.Series(["", "00123"]), {"00123": 1}),
        (pl.Series(["a\tb", "a\nb"]), {"a\tb": 1, "a\nb": 1}),
        (pl.Series(["x", None], dtype=pl.Categorical), {"x": 1}),
        (pl.Series(["x", "x"], dtype=pl.Enum(["w", "x"])), {"x": 2}),
        (pl.Series([date(2014, 10, 21), None]), {"2014-10-21": 1}),
        (pl.Series([None, None]), {}),
    ],
    ids=lambda value: str(value.dtype) if isinstance(value, pl.Series) else "",
)
def test_a_categorical_column_may_be_of_many_types(
    column: pl.Series, expected: dict[str, int], tmp_path: Path
) -> None:
    dataset = prepare_frame(tmp_path, a=column)

    assert values(dataset, "a") == expected
    assert dataset.manifest.fields[0].null == 2 - sum(expected.values())


ZONE = timezone(timedelta(hours=2))


@pytest.mark.parametrize(
    "times",
    [
        pl.Series([14102104, 14102105], dtype=pl.Int32),
        pl.Series(["14102104", "14102105"]),
        pl.Series([datetime(2014, 10, 21, 4), datetime(2014, 10, 21, 5, 59, 59)]),
        pl.Series([datetime(2014, 10, 21, 6, tzinfo=ZONE), datetime(2014, 10, 21, 7, tzinfo=ZONE)]),
        pl.Series([1413864000, 1413867600]),
    ],
    ids=lambda series: str(series.dtype),
)
def test_a_time_may_be_of_many_types(times: pl.Series, tmp_path: Path) -> None:
    dataset = prepare_frame(tmp_path, TIMED, t=times)

    assert values(dataset, "hour_of_day") == {"4": 1, "5": 1}
    assert values(dataset, "weekday") == {"2": 2}


def test_a_date_is_the_hour_at_its_start(tmp_path: Path) -> None:
    dataset = prepare_frame(tmp_path, TIMED, t=[date(2014, 10, 21), date(2014, 10, 22)])

    assert values(dataset, "hour_of_day") == {"0": 2}


@pytest.mark.parametrize(
    ("column", "series"),
    [
        ("a", pl.Series([0.5, 1.0])),
        ("a", pl.Series([Decimal("1.5"), None])),
        ("a", pl.Series([datetime(2014, 10, 21), None])),
        ("a", pl.Series([["x"], ["y"]])),
        ("a", pl.Series([{"x": 1}, {"x": 2}])),
        ("a", pl.Series([b"x", b"y"])),
        ("a", pl.Series([time(4), time(5)])),
        ("n", pl.Series([timedelta(1), None])),
        ("n", pl.Series([[1.0], [2.0]])),
        ("y", pl.Series([[1], [0]])),
    ],
    ids=lambda value: str(value.dtype) if isinstance(value, pl.Series) else value,
)
def test_a_type_without_one_text_is_refused(column: str, series: pl.Series, tmp_path: Path) -> None:
    with pytest.raises(
        SchemaError, match=rf"log\.parquet, column {column}: .* cannot be read as a .*: cast it"
    ):
        prepare_frame(tmp_path, SCHEMA, **{column: series})


def test_a_bad_row_is_named_by_its_number(tmp_path: Path) -> None:
    frame = pl.DataFrame({"a": ["x\ty", "z", "w"], "y": [1, 2, None], "n": [1.0, float("nan"), 3.0]})
    file = tmp_path / "log.parquet"
    frame.write_parquet(file)

    error = refusal(tmp_path, [file], schema=SCHEMA, error=InputError)
    dataset = prepare(SCHEMA, [file], tmp_path / "out", options=SKIP)

    assert (error.line, error.column) == (2, "y")
    assert "'2' is not a label" in str(error)
    assert [(row["line"], row["column"]) for row in rejected(dataset)] == [(2, "y"), (3, "y")]
    assert rejected(dataset)[0]["text"] == "z\t2\tNaN"


def test_nan_in_a_dense_column_is_a_bad_row(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="line 2, column n: 'NaN' is not a finite number"):
        prepare_frame(tmp_path, n=[1.0, float("nan")])


def test_a_tab_in_a_value_does_not_shift_the_columns_of_a_message(tmp_path: Path) -> None:
    pl.DataFrame({"a": ["x\ty"], "n": ["oops"], "y": [1]}).write_parquet(tmp_path / "log.parquet")

    error = refusal(tmp_path, [tmp_path / "log.parquet"], schema=SCHEMA, error=InputError)

    assert error.column == "n"
    assert "'oops'" in str(error)


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    pl.DataFrame({"y": [1], "n": [1]}).write_parquet(tmp_path / "log.parquet")

    error = refusal(tmp_path, [tmp_path / "log.parquet"], schema=SCHEMA, error=InputError)

    assert error.column == "a"
    assert "the file has no such column" in str(error)


def test_a_file_without_rows_adds_none(tmp_path: Path) -> None:
    pl.DataFrame(schema={"y": pl.Int8, "n": pl.Int8, "a": pl.String}).write_parquet(tmp_path / "log.parquet")

    error = refusal(tmp_path, [tmp_path / "log.parquet"], schema=SCHEMA, error=InputError)

    assert "there is no row in it" in str(error)
