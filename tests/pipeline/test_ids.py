"""Ids, splits and dense statistics, with values worked by hand."""

from __future__ import annotations

import hashlib
import itertools
import math
import random
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tests.pipeline.logs import EVERY_ROW, SMALL, parts, prepare_lines, refusal, vocabularies, write

from stampede import InputError, StampedeError
from stampede.pipeline import Dataset, DenseMode, PrepareOptions, Schema, SplitRule
from stampede.pipeline.inspect import summarise_fields
from stampede.pipeline.split import uniform_of_row
from stampede.pipeline.vocabulary import Vocabulary

ONE_FIELD = Schema(name="one", label="y", categorical=("a",))
TEXTS = ["b", "a", "b", "c", "", "B", "c", "b", "d", "é", ""]  # b 3, c 2, B a d é 1, empty 2


def one_field(folder: Path, texts: list[str] = TEXTS, **options: object) -> Dataset:
    lines = [f"1\t{text}" for text in texts]
    chosen = PrepareOptions(**{"split": EVERY_ROW, "min_count": 1} | options)  # type: ignore[arg-type]
    return prepare_lines(folder, lines, schema=ONE_FIELD, options=chosen)


def book(dataset: Dataset) -> list[tuple[str | None, int]]:
    return vocabularies(dataset)["a"].select("value", "count").rows()


RESERVED: list[tuple[str | None, int]] = [(None, 0), (None, 2)]


def test_ids_follow_the_count_then_the_bytes_of_the_value(tmp_path: Path) -> None:
    dataset = one_field(tmp_path)

    assert book(dataset) == [
        *RESERVED, (None, 0), ("b", 3), ("c", 2), ("B", 1), ("a", 1), ("d", 1), ("é", 1)
    ]  # fmt: skip
    rows = parts(dataset)["train"]
    assert rows["a"].to_list() == [3, 6, 3, 4, 1, 5, 4, 3, 7, 8, 1]
    assert rows["a_count"].to_list() == [3, 1, 3, 2, 2, 1, 2, 3, 1, 1, 2]


def test_rare_values_share_id_2(tmp_path: Path) -> None:
    dataset = one_field(tmp_path, min_count=2)

    assert book(dataset) == [*RESERVED, (None, 4), ("b", 3), ("c", 2)]
    assert parts(dataset)["train"]["a"].to_list() == [3, 2, 3, 4, 1, 2, 4, 3, 2, 2, 1]
    assert dataset.manifest.fields[0].model_dump() == {"name": "a", "size": 5, "null": 2, "rare": 4}


def test_max_size_keeps_the_most_frequent_after_min_count(tmp_path: Path) -> None:
    assert book(one_field(tmp_path, max_size=3)) == [*RESERVED, (None, 3), ("b", 3), ("c", 2), ("B", 1)]
    assert book(one_field(tmp_path, max_size=3, min_count=3)) == [*RESERVED, (None, 6), ("b", 3)]


def test_hash_buckets_take_every_value_that_is_not_kept(tmp_path: Path) -> None:
    dataset = one_field(tmp_path, min_count=2, hash_buckets=4)

    def bucket(value: str) -> int:
        digest = hashlib.blake2b(value.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") % 4

    expected = [0, 0, 0, 0]
    for value in ("a", "B", "d", "é"):
        expected[bucket(value)] += 1
    assert book(dataset) == [*RESERVED, (None, 0), ("b", 3), ("c", 2), *[(None, n) for n in expected]]
    assert parts(dataset)["train"]["a"][1] == 5 + bucket("a")


def test_unseen_values_of_the_test_rows_get_id_2_or_a_bucket(tmp_path: Path) -> None:
    split = SplitRule(rule="sequential", valid_fraction=0.0, test_fraction=0.4)
    texts = ["x", "x", "y", "x", "z"]
    plain = one_field(tmp_path, texts, split=split)
    assert parts(plain)["test"]["a"].to_list() == [3, 2]
    assert parts(plain)["test"]["a_count"].to_list() == [2, 0]

    bucketed = one_field(tmp_path, texts, split=split, hash_buckets=1)
    assert parts(bucketed)["test"]["a"].to_list() == [3, 5]
    assert book(bucketed) == [(None, 0), (None, 0), (None, 0), ("x", 2), ("y", 1), (None, 0)]


def test_fitting_on_all_rows_counts_them_all_and_says_the_training_rows_nulls(tmp_path: Path) -> None:
    split = SplitRule(rule="sequential", valid_fraction=0.0, test_fraction=0.5)
    dataset = one_field(tmp_path, ["x", "", "w", "x", "x", ""], split=split, fit_on="all", min_count=2)

    assert book(dataset) == [(None, 0), (None, 2), (None, 1), ("x", 3)]
    assert dataset.manifest.fields[0].model_dump() == {"name": "a", "size": 4, "null": 1, "rare": 1}


def test_a_vocabulary_file_is_read_back_as_it_was(tmp_path: Path) -> None:
    counted = pl.DataFrame({"value": ["x", None, "y", "z"], "count": [3, 2, 1, 1]})
    vocabulary = Vocabulary.build([counted], min_count=1, max_size=2, hash_buckets=3)
    vocabulary.save(tmp_path / "v.parquet")
    again = Vocabulary.load(tmp_path / "v.parquet")

    assert again.values.to_list() == ["x", "y"]
    assert again.counts.tolist() == vocabulary.counts.tolist()
    assert (again.size, again.buckets) == (8, 3)


# --- splits ---------------------------------------------------------------------------------------


def test_random_numbers_of_rows_are_splitmix64() -> None:
    # The published test vector of splitmix64 from state 0: its first outputs are those of rows 0, 1, 2.
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    rows = pl.DataFrame({"row": pl.Series([0, 1, 2], dtype=pl.UInt64)})

    found = rows.select(uniform_of_row(pl.col("row"), seed=0)).to_series()

    assert found.to_list() == [float(x) / 2**64 for x in expected]


def splits_of(folder: Path, rows: int, **rule: object) -> dict[str, list[float]]:
    options = PrepareOptions(split=SplitRule(**rule), dense_mode=DenseMode.NONE)  # type: ignore[arg-type]
    lines = [f"1\t{row}\t0\ta\tb" for row in range(rows)]
    dataset = prepare_lines(folder, lines, options=options)
    return {split: frame["n"].to_list() for split, frame in parts(dataset).items()}


def test_a_sequential_split_takes_the_floor_of_its_fractions_from_the_end(tmp_path: Path) -> None:
    found = splits_of(tmp_path, 100, rule="sequential", valid_fraction=0.29, test_fraction=0.057)

    assert found == {
        "train": list(range(66)), "valid": list(range(66, 95)), "test": list(range(95, 100))
    }  # fmt: skip


def test_a_random_split_keeps_the_order_of_rows_and_follows_the_seed(tmp_path: Path) -> None:
    found = [splits_of(tmp_path, 2000, seed=seed) for seed in (0, 0, 1)]

    assert found[0] == found[1] != found[2]
    assert all(rows == sorted(rows) for rows in found[0].values())
    assert sorted(itertools.chain(*found[0].values())) == list(range(2000))
    assert abs(len(found[0]["test"]) - 200) < 60


@pytest.mark.parametrize("rule", ["random", "sequential", "time"])
def test_fractions_of_nothing_leave_every_row_to_train(rule: str, tmp_path: Path) -> None:
    schema = Schema(name="t", label="y", dense=("n",), categorical=("a",), time="t")
    options = PrepareOptions(split=SplitRule(rule=rule, valid_fraction=0, test_fraction=0))  # type: ignore[arg-type]
    dataset = prepare_lines(
        tmp_path, [f"1\t{i}\ta\t14102100" for i in range(5)], schema=schema, options=options
    )

    assert dataset.rows == {"train": 5}
    assert {path.name for path in dataset.path.iterdir()} == {"train", "vocab", "manifest.json"}


def by_time(folder: Path, hours: list[str], **rule: object) -> dict[str, list[float]]:
    schema = Schema(name="t", label="y", dense=("n",), time="t")
    split = SplitRule(**{"rule": "time", "valid_fraction": 0.0} | rule)  # type: ignore[arg-type]
    options = PrepareOptions(split=split, dense_mode=DenseMode.NONE)
    lines = [f"1\t{i}\t{hour}" for i, hour in enumerate(hours)]
    dataset = prepare_lines(folder, lines, schema=schema, options=options)
    return {name: frame["n"].to_list() for name, frame in parts(dataset).items()}


def test_a_time_split_takes_whole_units_from_the_end(tmp_path: Path) -> None:
    hours = ["14102103", "14102101", "14102200", "14102101", "14102103", "14102102", "14102200", "14102100"]

    assert by_time(tmp_path, hours, test_fraction=0.25) == {"train": [0, 1, 3, 4, 5, 7], "test": [2, 6]}
    assert by_time(tmp_path, hours, test_fraction=0.26) == {"train": [1, 3, 5, 7], "test": [0, 2, 4, 6]}
    assert by_time(tmp_path, hours, test_fraction=0.1, valid_fraction=0.26) == {
        "train": [1, 3, 7], "valid": [0, 4, 5], "test": [2, 6]
    }  # fmt: skip
    assert by_time(tmp_path, hours, test_fraction=0.1, time_unit="day") == {
        "train": [0, 1, 3, 4, 5, 7], "test": [2, 6]
    }  # fmt: skip


def test_a_time_split_that_leaves_no_unit_to_train_names_its_fraction(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--test-fraction 0\.5 of 2 rows leaves no hour to train"):
        by_time(tmp_path, ["14102100", "14102100"], test_fraction=0.5)
    with pytest.raises(InputError, match=r"--valid-fraction 0\.3 of 3 rows leaves no day to train"):
        by_time(
            tmp_path,
            ["14102100", "14102200", "14102201"],
            test_fraction=0.1,
            valid_fraction=0.3,
            time_unit="day",
        )


def test_a_split_that_comes_out_empty_names_its_fraction(tmp_path: Path) -> None:
    log = write(tmp_path / "log", ["1\t1\t1\ta\tb"] * 3)
    cases = [
        (SplitRule(rule="sequential", test_fraction=0.3, valid_fraction=0), "--test-fraction 0.3 of 3 rows"),
        (SplitRule(rule="sequential", test_fraction=0, valid_fraction=0.1), "--valid-fraction 0.1 of 3 rows"),
        (SplitRule(test_fraction=0.001), "--test-fraction 0.001 of 3 rows"),
        (SplitRule(test_fraction=0.99, valid_fraction=0), "no row of 3 is left to train"),
        (SplitRule(rule="time"), "--split time needs a log with a time column"),
    ]
    for split, reason in cases:
        error = refusal(tmp_path, [log], options=PrepareOptions(split=split), error=StampedeError)
        assert reason in str(error)


# --- dense features -------------------------------------------------------------------------------


def dense_of(folder: Path, numbers: list[str], mode: DenseMode, **options: object) -> list[float]:
    schema = Schema(name="d", label="y", dense=("n",))
    chosen = PrepareOptions(**{"split": EVERY_ROW, "dense_mode": mode} | options)  # type: ignore[arg-type]
    dataset = prepare_lines(folder, [f"1\t{number}" for number in numbers], schema=schema, options=chosen)
    return list(parts(dataset)["train"]["n"])


def test_dense_modes_by_hand(tmp_path: Path) -> None:
    numbers = ["4", "", "-2", "6"]  # mean 2, deviation sqrt((4 + 4 + 16 + 16) / 4) = sqrt(10)

    def float32(values: list[float]) -> list[float]:
        return [float(value) for value in np.array(values, np.float32)]

    minmax = dense_of(tmp_path, numbers, DenseMode.MINMAX)
    assert minmax == float32([0.75, 0.25, 0.0, 1.0])
    assert dense_of(tmp_path, numbers, DenseMode.STANDARD) == float32(
        [x / math.sqrt(10) for x in (2, -2, -4, 4)]
    )
    assert dense_of(tmp_path, numbers, DenseMode.LOG) == float32(
        [math.log(5), 0.0, -math.log(3), math.log(7)]
    )
    assert dense_of(tmp_path, numbers, DenseMode.NONE) == [4.0, 0.0, -2.0, 6.0]


def test_values_outside_the_fitted_range_are_clipped(tmp_path: Path) -> None:
    schema = Schema(name="d", label="y", dense=("n",))
    split = SplitRule(rule="sequential", valid_fraction=0, test_fraction=0.5)
    options = PrepareOptions(split=split, dense_mode=DenseMode.MINMAX)
    lines = [f"1\t{number}" for number in (1, 3, -100, 100)]

    dataset = prepare_lines(tmp_path, lines, schema=schema, options=options)

    assert parts(dataset)["test"]["n"].to_list() == [0.0, 1.0]
    assert dataset.manifest.dense[0].maximum == 3.0


@pytest.mark.parametrize(
    "number", ["0.3", "-0.3", "7", "1e30", "1e-300", "123456789.123456789", "-3.4e38", ""]
)
@pytest.mark.parametrize("mode", [DenseMode.MINMAX, DenseMode.STANDARD])
def test_a_constant_column_gives_0(number: str, mode: DenseMode, tmp_path: Path) -> None:
    assert dense_of(tmp_path, [number] * 7, mode) == [0.0] * 7


@pytest.mark.parametrize("mode", [mode for mode in DenseMode if mode != DenseMode.LOG_BUCKET])
def test_extreme_numbers_stay_finite(mode: DenseMode, tmp_path: Path) -> None:
    extremes = ["3.4028234663852886e38", "-3.4028235e38", "1e-45", "1e-310", "-5e-324", "-0.0", "", "1"]
    for numbers in (extremes, ["1e-310", "-3e-310", ""], ["1e-160", "2e-160"], ["1", "1.0000000000000002"]):
        found = dense_of(tmp_path, numbers, mode)
        assert np.isfinite(found).all()
        assert not any(x == 0 and math.copysign(1, x) < 0 for x in found)


def test_log_buckets_by_hand(tmp_path: Path) -> None:
    schema = Schema(name="d", label="y", dense=("n",))
    options = PrepareOptions(split=EVERY_ROW, dense_mode=DenseMode.LOG_BUCKET, min_count=1)
    expected = {
        "": None, "0": "s0", "-0.5": "s0", "0.9": "s0", "1": "s1", "1.5": "s1", "2": "s2",
        "2.0": "s2", "-1": "s-1", "-2.7": "s-2", "2.1": "0", "3": "1", "5": "2", "100": "21",
        "1e38": "7655", "-7": "s-7",
    }  # fmt: skip
    dataset = prepare_lines(tmp_path, [f"1\t{n}" for n in expected], schema=schema, options=options)

    ids = parts(dataset)["train"]["n"].to_list()
    names = vocabularies(dataset)["n"]["value"].to_list()
    assert [names[i] for i in ids] == list(expected.values())
    assert dataset.dense_columns == ()
    assert dataset.fields == ("n",)


def test_statistics_do_not_depend_on_the_order_of_rows(tmp_path: Path) -> None:
    generator = random.Random(0)
    numbers = [repr(generator.lognormvariate(0, 9) * generator.choice([-1, 1])) for _ in range(5000)]
    lines = [f"1\t{number}\t{'-0.0' if i % 2 else '0.0'}\ta\tb" for i, number in enumerate(numbers)]
    options = PrepareOptions(split=EVERY_ROW, dense_mode=DenseMode.STANDARD)
    first = prepare_lines(tmp_path, lines, options=options).manifest.dense

    for _ in range(2):
        generator.shuffle(lines)
        assert repr(prepare_lines(tmp_path, lines, options=options).manifest.dense) == repr(first)
    exact = np.array([float(number) for number in numbers])
    assert first[0].mean == pytest.approx(math.fsum(exact) / 5000, rel=1e-12)
    assert first[0].std == pytest.approx(exact.std(), rel=1e-12)


# --- what is in a dataset -------------------------------------------------------------------------


def test_a_summary_tells_shares_and_skew(tmp_path: Path) -> None:
    split = SplitRule(rule="sequential", valid_fraction=0, test_fraction=0.2)
    texts = ["x"] * 5 + ["y", "y", "", "z", "z", "x", "q", "", "z"][:3] + ["q", "x"]
    dataset = one_field(tmp_path, texts, split=split, min_count=2)

    (field,) = summarise_fields(dataset)

    assert (field.rows, field.distinct, field.size) == (8, 2, 5)
    assert (field.null_share, field.rare_share, field.unseen_share_of_test) == (1 / 8, 0.0, 0.5)
    assert field.top_values == (("x", 5 / 8), ("y", 2 / 8))
    assert (field.top_10_share, field.ids_for_90_percent) == (1.0, 3)
    assert SMALL.fields == ("a", "b")
