"""The dataset contract: our preparation against a naive one in plain Python."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.pipeline import reference
from tests.pipeline.logs import AVAZU, CRITEO, DATA, TIMED, assert_is, log_of, memory_folder
from tests.pipeline.reference import Rules

from stampede import ConfigError, InputError, StampedeError
from stampede.pipeline import DenseMode, PrepareOptions, Schema, SplitRule, prepare


def options_of(rules: Rules) -> PrepareOptions:
    return PrepareOptions(
        split=SplitRule(
            rule=rules.split,
            valid_fraction=float(rules.valid_fraction),
            test_fraction=float(rules.test_fraction),
            seed=rules.seed,
            time_unit=rules.time_unit,
        ),
        min_count=rules.min_count,
        max_size=rules.max_size,
        hash_buckets=rules.hash_buckets,
        dense_mode=DenseMode(rules.dense),
        dense_null_flag=rules.dense_null_flag,
        fit_on=rules.fit_on,
        counts=rules.counts,
        bad_rows="skip",
    )


def assert_prepared_as_the_reference(
    files: list[Path],
    schema: Schema,
    rules: Rules,
    folder: Path,
    *,
    separator: str = "\t",
    header: bool = False,
) -> None:
    expected = reference.prepare(files, log_of(schema, separator=separator, header=header), rules)
    dataset = prepare(schema, files, folder / "out", options=options_of(rules), force=True)
    assert_is(dataset, expected)


@pytest.mark.parametrize("split", ["random", "sequential"])
@pytest.mark.parametrize("dense", ["log", "minmax", "standard", "none", "log-bucket"])
def test_real_rows_are_prepared_under_every_dense_mode_and_split(
    split: Any, dense: Any, tmp_path: Path
) -> None:
    rules = Rules(split=split, dense=dense, dense_null_flag=dense == "log")
    assert_prepared_as_the_reference([DATA / "criteo_excerpt.tsv"], CRITEO, rules, tmp_path)


@pytest.mark.parametrize(
    ("min_count", "hash_buckets", "max_size"),
    [(1, 0, None), (3, 0, None), (1, 0, 10), (1, 7, None), (3, 7, None), (3, 7, 10), (3, 1, 1)],
)
def test_real_values_get_the_ids_of_the_contract(
    min_count: int, hash_buckets: int, max_size: int | None, tmp_path: Path
) -> None:
    rules = Rules(min_count=min_count, hash_buckets=hash_buckets, max_size=max_size, seed=7)
    assert_prepared_as_the_reference(
        [DATA / "avazu_excerpt.csv"], AVAZU, rules, tmp_path, separator=",", header=True
    )


@pytest.mark.parametrize("unit", ["hour", "day"])
@pytest.mark.parametrize("valid_fraction", ["0", "0.1", "0.4"])
def test_real_hours_are_split_by_time(unit: Any, valid_fraction: str, tmp_path: Path) -> None:
    rules = Rules(split="time", time_unit=unit, valid_fraction="0" if unit == "day" else valid_fraction)
    assert_prepared_as_the_reference(
        [DATA / "avazu_excerpt.csv"], AVAZU, rules, tmp_path, separator=",", header=True
    )


@pytest.mark.parametrize("fit_on", ["train", "all"])
@pytest.mark.parametrize("counts", [True, False])
def test_vocabularies_are_fitted_on_the_rows_asked_for(fit_on: Any, counts: bool, tmp_path: Path) -> None:
    rules = Rules(fit_on=fit_on, counts=counts, test_fraction="0.3", dense="standard")
    assert_prepared_as_the_reference([DATA / "criteo_excerpt.tsv"], CRITEO, rules, tmp_path)


NASTY_VALUES = [
    "", " ", "a", "A", "null", "None", "nan", "NA", "0", "00", "-0", "1e5", "05e00000", "00123456",
    "623e1100", "18446744073709551616", "99999999999999999999", "é", "e\u0301", "漢字", "😀",
    "\ufeff", "\u00a0", "\u2028", "a b", "'", "\\N", "\\", "%", "\x00", "\x1f", "\x85", "\x0b",
    "a\rb", "s1", "true", "x" * 300,
]  # fmt: skip
NASTY_NUMBERS = [
    "", "0", "-0", "-0.0", "1", "-1", "2", "2.0", "3", "+4", "007", ".5", "5.", "1e3", "1E-3",
    "-2", "0.3", "0.1", "1e-320", "-1e-310", "1e-45", "16777217", "2147483648",
    "9223372036854775808", "123456789012345678901234567890", "3.4e38", "-3.4e38", "1e-400", " 6 ",
    "1.9999999", "-0.5", "NA",
]  # fmt: skip
BAD_NUMBERS = [
    "x",
    "nan",
    "NaN",
    "inf",
    "-inf",
    "Infinity",
    "1e39",
    "1e400",
    "0x10",
    "1_000",
    "1,5",
    "--1",
    "1 2",
    "١",
]
LABELS = ["0", "1", "-1", "1.0", "0.0", "-1.0", "true", "FALSE", "True", " 1 "]
BAD_LABELS = ["", "2", "0.5", "yes", "nan", "null", "-2"]
TIMES = ["14102100", "14102123", "14102200", "14102305", "2014-10-21", "2014-10-22 04:00:00", "1413864000"]
BAD_TIMES = [
    "",
    "14102124",
    "14102125",
    "14130100",
    "14023000",
    "2014-02-30",
    "2014-10-21 25:00:00",
    "x",
    "20141021",
]

clicks = st.tuples(
    st.sampled_from(LABELS),
    st.sampled_from(NASTY_NUMBERS),
    st.sampled_from(NASTY_VALUES),
    st.sampled_from(TIMES),
)
faulty = st.one_of(
    st.tuples(
        st.sampled_from(BAD_LABELS), *[st.sampled_from(s) for s in (NASTY_NUMBERS, NASTY_VALUES, TIMES)]
    ),
    st.tuples(st.sampled_from(LABELS), st.sampled_from(BAD_NUMBERS), st.just("a"), st.sampled_from(TIMES)),
    st.tuples(st.sampled_from(LABELS), st.just("1"), st.just("a"), st.sampled_from(BAD_TIMES)),
    st.tuples(
        st.sampled_from(BAD_LABELS), st.sampled_from(BAD_NUMBERS), st.just("a"), st.sampled_from(BAD_TIMES)
    ),
    st.sampled_from(
        [("1",), ("1", "2"), ("1", "2", "a"), ("1", "2", "a", TIMES[0], ""), ("", "", "", "", "", "")]
    ),
)
blank = st.sampled_from([(), ("  ",)])
rows = st.lists(st.one_of(*[clicks] * 6, faulty, blank), min_size=10, max_size=30)
fractions = st.sampled_from(["0", "0", "0.1", "0.25", "0.29", "0.5"])
rules = st.builds(
    Rules,
    valid_fraction=fractions,
    test_fraction=st.sampled_from(["0", "0.1", "0.3", "0.49"]),
    seed=st.integers(-3, 2**65),
    time_unit=st.sampled_from(["hour", "day"]),
    min_count=st.integers(1, 3),
    max_size=st.sampled_from([None, None, 1, 3]),
    hash_buckets=st.sampled_from([0, 0, 1, 4]),
    dense=st.sampled_from(["log", "minmax", "standard", "none", "log-bucket"]),
    dense_null_flag=st.booleans(),
    fit_on=st.sampled_from(["train", "all"]),
    counts=st.booleans(),
)


@pytest.mark.parametrize("split", ["random", "sequential", "time"])
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    log=rows,
    repeats=st.integers(1, 4),
    cut=st.integers(0, 40),
    rules=rules,
    null_values=st.sampled_from([(), ("NA", "-1", "nan")]),
)
def test_nasty_logs_are_prepared_as_the_reference_does(
    log: list[tuple[str, ...]], repeats: int, cut: int, rules: Rules, null_values: tuple[str, ...], split: Any
) -> None:
    log = log * repeats
    rules = dataclasses.replace(rules, split=split)
    if rules.dense == "log-bucket":
        rules = dataclasses.replace(rules, dense_null_flag=False)
    schema = TIMED.model_copy(update={"null_values": null_values, "separator": "\t", "header": False})
    with memory_folder() as folder:
        files = [folder / "1.tsv", folder / "2.tsv"]
        files[0].write_bytes("".join("\t".join(fields) + "\n" for fields in log[:cut]).encode())
        files[1].write_bytes("\r\n".join("\t".join(fields) for fields in log[cut:]).encode())
        try:
            expected = reference.prepare(files, log_of(schema), rules)
        except (IndexError, KeyError, ValueError):  # no row at all, none to train, or no whole hour left
            expected = None
        requested = {"train"}
        requested |= {"valid"} if rules.valid_fraction != "0" else set()
        requested |= {"test"} if rules.test_fraction != "0" else set()
        if expected is None or expected.splits.keys() != requested:
            with pytest.raises((ConfigError, InputError)):
                prepare(schema, files, folder / "out", options=options_of(rules))
            return
        dataset = prepare(schema, files, folder / "out", options=options_of(rules))
        assert_is(dataset, expected)


QUOTED = [
    '"a"',
    '"a,b"',
    '"say ""so"""',
    '""',
    'a"b',
    '"',
    '"a',
    '"a"b',
    ' "a"',
    '"a\rb"',
    "a\rb",
    '"",',
    '""""',
]


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.lists(st.sampled_from([*QUOTED, "a", "b", ""]), min_size=1, max_size=3), min_size=1, max_size=12
    )
)
def test_quoted_fields_are_read_as_rfc_4180_says(log: list[list[str]]) -> None:
    schema = Schema(name="csv", label="y", categorical=("a", "b"), separator=",", header=False)
    rules = Rules(valid_fraction="0", test_fraction="0", min_count=1)
    with memory_folder() as folder:
        file = folder / "log.csv"
        file.write_bytes("".join(",".join(["1", *fields]) + "\n" for fields in [*log, ["x", "y"]]).encode())
        assert_prepared_as_the_reference([file], schema, rules, folder, separator=",")


def test_a_bad_option_names_its_flag() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"min_count": 0}, "--min-count"),
        ({"max_size": 0}, "--max-size"),
        ({"hash_buckets": -1}, "--hash-buckets"),
        ({"dense_mode": "sqrt"}, "--dense"),
        ({"fit_on": "test"}, "--fit-on"),
        ({"bad_rows": "ignore"}, "--bad-rows"),
        ({"split": SplitRule(test_fraction=1.5)}, "--test-fraction"),
        ({"split": SplitRule(valid_fraction=float("nan"))}, "--valid-fraction"),
        ({"split": SplitRule(valid_fraction=0.5, test_fraction=0.5)}, "--valid-fraction"),
        ({"dense_mode": DenseMode.LOG_BUCKET, "dense_null_flag": True}, "--dense-null-flag"),
    ]
    for arguments, flag in cases:
        with pytest.raises(StampedeError, match=f"^{flag} "):
            PrepareOptions(**arguments)
