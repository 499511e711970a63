"""Rows that cannot be used: each is named by file, line, column and value, or left out and listed."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from tests.pipeline.logs import (
    EVERY_ROW,
    KEEP_ALL,
    SKIP,
    SMALL,
    TIMED,
    good_rows,
    parts,
    prepare_lines,
    refusal,
    rejected,
    values,
    write,
)

from stampede import InputError
from stampede.pipeline import DenseMode, PrepareOptions, Schema, prepare
from stampede.pipeline.spool import PREVIEWED_ROWS, write_spool

# A row of y, n, m, a, b; the column at fault, and what the message says of it.
BAD_ROWS: dict[str, tuple[str | bytes, str | None, str]] = {
    "label of another class": ("2\t1\t1\ta\tb", "y", "'2' is not a label"),
    "label between the classes": ("0.5\t1\t1\ta\tb", "y", "'0.5' is not a label"),
    "label missing": ("\t1\t1\ta\tb", "y", "'' is not a label"),
    "label a word": ("click\t1\t1\ta\tb", "y", "'click' is not a label"),
    "label not a number": ("nan\t1\t1\ta\tb", "y", "'nan' is not a label"),
    "second header": ("y\tn\tm\ta\tb", "y", "'y' is not a label"),
    "byte order mark amid the file": ("\ufeff1\t1\t1\ta\tb", "y", "is not a label"),
    "word in a dense column": ("1\tx\t1\ta\tb", "n", "'x' is not a finite number"),
    "nan": ("1\t1\tnan\ta\tb", "m", "'nan' is not a finite number"),
    "infinite": ("1\t1\t-inf\ta\tb", "m", "'-inf' is not a finite number"),
    "beyond float64": ("1\t1e400\t1\ta\tb", "n", "'1e400' is not a finite number"),
    "beyond float32": ("1\t1e39\t1\ta\tb", "n", "within float32"),
    "hexadecimal number": ("1\t0x10\t1\ta\tb", "n", "'0x10'"),
    "digit groups": ("1\t1,000\t1\ta\tb", "n", "'1,000'"),
    "two numbers": ("1\t1 2\t1\ta\tb", "n", "'1 2'"),
    "carriage return in a number": ("1\t1\r2\t1\ta\tb", "n", r"'1\r2'"),
    "NUL in a number": ("1\t1\0\t1\ta\tb", "n", r"'1\x00'"),
    "long value": ("1\t" + "9" * 500 + "\t1\ta\tb", "n", "9…'"),
    "too few fields": ("1\t1\t1\ta", None, "the row has 4 fields where 5 are expected"),
    "one field": ("1", None, "the row has 1 field where 5 are expected"),
    "too many fields": ("1\t1\t1\ta\tb\tc\td", None, "the row has 7 fields where 5 are expected"),
    "one empty field too many": ("1\t1\t1\ta\tb\t", None, "6 fields"),
    "tabs alone": ("\t\t\t\t", "y", "'' is not a label"),
    "not UTF-8": (b"1\t1\t1\t\xff\tb", None, "not UTF-8"),
    "cut inside a character": (b"1\t1\t1\ta\t\xe6\xbc", None, "not UTF-8"),
    "several faults": ("2\tx\tnan\ta\tb", "y", "'2' is not a label"),
    "several faults and fields": ("2\tx\tnan", None, "3 fields"),
}


@pytest.mark.parametrize("place", ["first", "middle", "last"])
@pytest.mark.parametrize("kind", BAD_ROWS)
def test_a_bad_row_stops_the_job_with_its_place_or_is_left_out(kind: str, place: str, tmp_path: Path) -> None:
    bad, column, reason = BAD_ROWS[kind]
    if place == "first" and kind in ("second header", "byte order mark amid the file"):
        pytest.skip("at the start of a file these are right")
    good: list[str | bytes] = [*good_rows(6)]
    line = {"first": 1, "middle": 4, "last": 7}[place]
    lines = [*good[: line - 1], bad, *good[line - 1 :]]
    first, second = write(tmp_path / "1.tsv", good), write(tmp_path / "2.tsv", lines)

    error = refusal(tmp_path, [first, second], error=InputError)
    skipped = prepare(SMALL, [first, second], tmp_path / "skipped", options=SKIP)

    assert (error.file, error.line, error.column) == (str(second), line, column)
    assert reason in str(error)
    assert str(error).endswith("; mend the row, or leave such rows out with --bad-rows skip")
    assert skipped.rows == {"train": 12}
    (row,) = rejected(skipped)
    assert (row["file"], row["line"], row["column"]) == ("2.tsv", line, column)
    assert reason in row["reason"]
    text = bad if isinstance(bad, str) else bad.decode("utf-8", "backslashreplace")
    assert row["text"] == text
    rows = parts(skipped)["train"]
    assert rows.head(6).equals(rows.tail(6))


BAD_TIMES = [
    "", "x", "14102124", "14102125", "14130100", "14023000", "141021", "1410210", "20141021",
    "2014-02-30", "2014-13-01", "2014-10-21 24:00:00", "2014-10-21 25:00:00",
    "2014-10-21 04:60:00", "2014-10-21 04:00:61", "2014-10-21Z", "2014-10-21 04:00:00+02:00",
    "21.10.2014", "1413864000000", "-1413864000", "١٤١٠٢١٠٠", "2014-1-2",
]  # fmt: skip


@pytest.mark.parametrize("time", BAD_TIMES)
def test_a_time_that_is_none_is_a_bad_row(time: str, tmp_path: Path) -> None:
    log = write(tmp_path / "log.tsv", [f"1\t2\ta\t{time}", "0\t2\ta\t14102100"])

    error = refusal(tmp_path, [log], schema=TIMED, error=InputError)

    assert (error.line, error.column) == (1, "t")
    assert f"{time!r} is not a time" in str(error)


@pytest.mark.parametrize(
    ("time", "hour", "weekday"),
    [
        ("14102100", "0", "2"),
        ("14102123", "23", "2"),
        (" 14102105 ", "5", "2"),
        ("00022912", "12", "2"),
        ("2014-10-21", "0", "2"),
        ("2014-10-21 04", "4", "2"),
        ("2014-10-21 04:59", "4", "2"),
        ("2014-10-26 23:59:59", "23", "7"),
        ("2014-10-27T00:00:00Z", "0", "1"),
        ("2014-10-21 04:00:00.123456", "4", "2"),
        ("1969-12-31 23:00:00", "23", "3"),
        ("1413864000", "4", "2"),
        ("1413864000.75", "4", "2"),
    ],
)
def test_a_time_yields_its_hour_and_weekday(time: str, hour: str, weekday: str, tmp_path: Path) -> None:
    dataset = prepare_lines(tmp_path, [f"1\t2\ta\t{time}"], schema=TIMED)

    assert list(values(dataset, "hour_of_day")) == [hour]
    assert list(values(dataset, "weekday")) == [weekday]


@pytest.mark.parametrize(
    ("label", "expected"),
    [("1", 1), ("1.0", 1), ("true", 1), ("TRUE", 1), (" 1 ", 1), ("+1", 1), ("0", 0), ("0.0", 0), ("-1", 0),
     ("-1.0", 0), ("False", 0), ("-0", 0)],
)  # fmt: skip
def test_a_label_may_be_written_in_many_ways(label: str, expected: int, tmp_path: Path) -> None:
    dataset = prepare_lines(tmp_path, [f"{label}\t1\t1\ta\tb", "0\t1\t1\ta\tb"])

    assert parts(dataset)["train"]["label"].to_list() == [expected, 0]


def test_categorical_values_are_kept_byte_for_byte(tmp_path: Path) -> None:
    texts = [
        "05e00000", "00123456", "123456", "623e1100", "18446744073709551616", "1e5", "-0", " a",
        "a ", "null", "None", "NaN", "NULL", "nan", '"', '"a"', "'", "\\", "\\t", "é", "e\u0301",
        "漢字", "😀", "\ufeff", "\u00a0", "\x00", "a\rb", "\x85", "\u2028", "\x0b", "\x0c", "\x1c",
        "x" * 200_000,
    ]  # fmt: skip
    dataset = prepare_lines(tmp_path, [f"1\t1\t1\t{text}\t{text}" for text in texts])

    assert values(dataset, "a") == dict.fromkeys(texts, 1)
    assert dataset.manifest.fields[1].null == 0


def test_a_dense_value_may_have_spaces_around_it_and_be_a_float(tmp_path: Path) -> None:
    numbers = ["5", " 5", "5 ", "5.0", "5.", "+5", "005", "50e-1", "0.5e1"]
    dataset = prepare_lines(
        tmp_path,
        [f"1\t{number}\t\ta\tb" for number in numbers],
        options=PrepareOptions(split=EVERY_ROW, dense_mode=DenseMode.NONE),
    )

    assert parts(dataset)["train"]["n"].to_list() == [5.0] * len(numbers)


def test_null_values_of_the_schema_are_empty_in_every_column(tmp_path: Path) -> None:
    schema = SMALL.model_copy(update={"null_values": ("NA", "nan", "-1", "\\N")})
    options = PrepareOptions(split=EVERY_ROW, min_count=1, dense_mode=DenseMode.MINMAX, dense_null_flag=True)
    lines = ["1\tNA\t-1\tNA\t-1", "1\tnan\t\t\tnan", "0\t4\t2\tx\tna", "0\t0\t0\t \\N\t\\N"]
    dataset = prepare_lines(tmp_path, lines, schema=schema, options=options)

    rows = parts(dataset)["train"]
    assert rows["n"].to_list() == [0.0, 0.0, 1.0, 0.0]
    assert rows["n_null"].to_list() == [1.0, 1.0, 0.0, 0.0]
    assert rows["m"].to_list() == [0.0, 0.0, 1.0, 0.0]
    assert values(dataset, "a") == {"x": 1, " \\N": 1}
    assert values(dataset, "b") == {"na": 1}


def test_a_bad_row_far_behind_the_first_ones_is_found(tmp_path: Path) -> None:
    lines = good_rows(PREVIEWED_ROWS + 50)
    lines[PREVIEWED_ROWS + 20] = "1\tfar\t1\ta\tb"
    lines[PREVIEWED_ROWS + 30] = "farther"

    error = refusal(tmp_path, [write(tmp_path / "log.tsv", lines)], error=InputError)

    assert (error.line, error.column) == (PREVIEWED_ROWS + 21, "n")


def test_the_first_bad_line_is_named_also_where_another_is_not_utf8(tmp_path: Path) -> None:
    log = write(tmp_path / "log.tsv", ["1\tx\t1\ta\tb", *good_rows(3), b"1\t1\t1\t\xff\tb"])

    error = refusal(tmp_path, [log], error=InputError)

    assert (error.line, error.column) == (1, "n")


def test_rejected_rows_of_all_files_are_listed_in_order(tmp_path: Path) -> None:
    files = [
        write(tmp_path / "1.tsv", ["x", *good_rows(3), "1\ty\t1\ta\tb"]),
        write(tmp_path / "2.tsv", good_rows(3)),
        write(tmp_path / "3.tsv", ["", b"1\t1\t1\t\xff\tb", *good_rows(1), "2\t1\t1\ta\tb"]),
    ]
    dataset = prepare(SMALL, files, tmp_path / "out", options=SKIP)

    assert [(row["file"], row["line"], row["column"]) for row in rejected(dataset)] == [
        ("1.tsv", 1, None),
        ("1.tsv", 5, "n"),
        ("3.tsv", 2, None),
        ("3.tsv", 4, "y"),
    ]
    assert dataset.manifest.rejected == 4
    assert dataset.rows == {"train": 7}


def test_a_file_of_bad_rows_alone_tells_the_first_reason(tmp_path: Path) -> None:
    log = write(tmp_path / "log.tsv", ["1\tx\t1\ta\tb", "3\t1\t1\ta\tb"])

    error = refusal(tmp_path, [log], options=SKIP, error=InputError)

    assert (error.line, error.column) == (1, "n")
    assert "none of the 2 rows can be used; the first: 'x' is not a finite number" in str(error)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ('1,1,1,"a,b', "not closed"),
        ('1,1,1,"a"b,c', "text follows its closing quote"),
        ('1,1,1,"a,b",c,d', "6 fields where 5 are expected"),
        ('1,"x,y",1,a,b', "'x,y' is not a finite number"),
    ],
)
def test_a_bad_row_of_quoted_fields_is_named(row: str, reason: str, tmp_path: Path) -> None:
    log = write(tmp_path / "log.csv", ["1,1,1,a,b", row])

    error = refusal(tmp_path, [log], error=InputError)

    assert error.line == 2
    assert reason in str(error)


def test_rows_to_predict_need_no_label_and_one_that_is_there_is_ignored(tmp_path: Path) -> None:
    unlabelled = write(tmp_path / "1.tsv", ["1\t2\ta\tb", "\t\t\t"])
    labelled = write(tmp_path / "2.tsv", ["x\t1\t2\ta\tb", "\t3\t4\ta\tb"])
    named = write(tmp_path / "3.csv", ["b,a,n,m", "b,a,5,6"])

    spool = write_spool([unlabelled, labelled, named], SMALL, tmp_path / "spool", with_label=False)

    rows = spool.scan().collect()
    assert spool.rows == 5
    assert "label" not in rows.columns
    assert rows["n"].to_list() == [1, None, 1, 3, 5]
    assert rows["b"].to_list() == ["b", None, "b", "b", "b"]
    assert rows[".row"].to_list() == list(range(5))
    assert rows.schema[".row"] == pl.UInt64


def test_a_bad_row_to_predict_is_named_without_a_hint_that_predict_does_not_have(tmp_path: Path) -> None:
    log = write(tmp_path / "log.tsv", ["1\t2\ta\tb", "1\tx\ta\tb"])

    with pytest.raises(
        InputError, match=r"line 2, column m: 'x' is not a finite number within float32; mend the row$"
    ):
        write_spool([log], SMALL, tmp_path / "spool", with_label=False)


def test_progress_tells_all_rows(tmp_path: Path) -> None:
    counted: list[int] = []
    log = write(tmp_path / "log.tsv", good_rows(50))

    write_spool([log, log], SMALL, tmp_path / "spool", on_rows=counted.append)

    assert sum(counted) == 100


def test_a_schema_may_name_its_columns_with_odd_characters(tmp_path: Path) -> None:
    schema = Schema(name="odd", label="a b", dense=("ü.1", "^n"), categorical=("**", "C:1"), drop=("-",))
    dataset = prepare_lines(
        tmp_path, ["1\t2\t3\tx\ty\tz", "0\t2\t3\tx\ty\tz"], schema=schema, options=KEEP_ALL
    )

    assert dataset.fields == ("**", "C:1")
    assert dataset.dense_columns == ("ü.1", "^n")
    assert values(dataset, "**") == {"x": 2}
