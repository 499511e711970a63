"""Crosses, count features and target encoding, against plain Python."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import roc_auc_score
from tests.pipeline.logs import KEEP_ALL, SMALL, TIMED, good_rows, parts, prepare_lines, write
from tests.pipeline.reference import uniform

from stampede import ConfigError
from stampede.pipeline import Dataset, DenseMode, Encoder, PrepareOptions, Schema, SplitRule, prepare
from stampede.pipeline.transform import transform

PAIRS = Schema(name="pairs", label="y", categorical=("a", "b"), separator="\t")
SMOOTHING = 20


def options(**values: Any) -> PrepareOptions:
    return replace(KEEP_ALL, **values)


class TestCrosses:
    VALUES = ("", "p", "q", "p\x1f", "\x1fq", "\x1b", "p\x1b", "\x1b\x1f")

    def test_each_pair_of_values_is_a_value_of_its_own(self, tmp_path: Path) -> None:
        pairs = [(a, b) for a in self.VALUES for b in self.VALUES]
        lines = ["\t".join((str(i % 2), *pair)) for i, pair in enumerate(pairs * 2)]
        dataset = prepare_lines(tmp_path, lines, schema=PAIRS, options=options(crosses=(("a", "b"),)))

        ids = parts(dataset)["train"]["a_x_b"].to_list()
        assert ids[: len(pairs)] == ids[len(pairs) :]
        assert len(set(ids)) == len(pairs)
        assert [ids[i] for i, pair in enumerate(pairs) if pair == ("", "")] == [1]
        assert dataset.fields == ("a", "b", "a_x_b")
        assert dataset.sizes["a_x_b"] == 3 + len(pairs) - 1

    def test_features_of_the_time_and_bucketed_numbers_cross_too(self, tmp_path: Path) -> None:
        chosen = options(dense_mode=DenseMode.LOG_BUCKET, crosses=(("n", "hour_of_day"), ("a", "weekday")))
        dataset = prepare_lines(tmp_path, good_rows(60, schema=TIMED), schema=TIMED, options=chosen)

        frame = parts(dataset)["train"]
        for one, other in chosen.crosses:
            pairs = set(zip(frame[one], frame[other], strict=True))
            crossed = set(zip(frame[one], frame[other], frame[f"{one}_x_{other}"], strict=True))
            assert len(crossed) == len(pairs) == frame[f"{one}_x_{other}"].n_unique()

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            ({"crosses": (("a", "n"),)}, "--cross: there is no field n: it is a number"),
            ({"crosses": (("a", "a"),)}, "name two different fields"),
            ({"crosses": (("a", "b"), ("a", "b"))}, "given twice"),
            ({"target_encode": ("c",)}, "--target-encode: there is no field c: choose from a, b"),
            ({"target_encode": ("a", "a")}, "given twice"),
            ({"folds": 1}, "--folds 1: it must be between 2 and 100"),
        ],
    )
    def test_what_cannot_be_is_a_config_error(self, wrong: Any, message: str, tmp_path: Path) -> None:
        log = write(tmp_path / "log.txt", good_rows(20))
        with pytest.raises(ConfigError, match=message):
            prepare(SMALL, [log], tmp_path / "out", options=options(**wrong))
        assert not (tmp_path / "out").exists()

    def test_a_name_that_is_taken_is_a_config_error(self, tmp_path: Path) -> None:
        schema = Schema(name="taken", label="y", dense=("a_target",), categorical=("a", "b", "a_x_b"))
        log = write(tmp_path / "log.txt", ["1\t2\tx\ty\tz"] * 20)
        for wrong, name in (({"crosses": (("a", "b"),)}, "a_x_b"), ({"target_encode": ("a",)}, "a_target")):
            with pytest.raises(ConfigError, match=f"two columns would be called {name}"):
                prepare(schema, [log], tmp_path / "out", options=options(**wrong))


@pytest.mark.parametrize("buckets", [0, 3])
def test_count_features_say_how_frequent_an_id_is(buckets: int, tmp_path: Path) -> None:
    chosen = options(min_count=2, hash_buckets=buckets, count_features=True, split=SplitRule(seed=4))
    lines = [f"{i % 2}\t1\t2\ta{i % 7 * (i % 3)}\t{'' if i % 5 else f'b{i}'}" for i in range(200)]
    dataset = prepare_lines(tmp_path, lines, options=chosen)

    assert dataset.dense_columns == ("n", "m", "a_log_count", "b_log_count")
    fitted = dataset.rows["train"]
    for frame in parts(dataset).values():
        for field in ("a", "b"):
            for number, count, found in frame.select(
                field, f"{field}_count", f"{field}_log_count"
            ).iter_rows():
                expected = 0.0 if number == 2 else math.log1p(count) / math.log1p(fitted)
                assert found == pytest.approx(expected, rel=1e-6)


class TestTargets:
    FOLDS = 3

    def rows(self, number: int, seed: int = 0) -> list[tuple[int, str, str]]:
        draw = random.Random(seed)
        return [
            (int(draw.random() < 0.3), draw.choice(["", "x", "y", "z"]), f"v{int(draw.expovariate(0.2))}")
            for _ in range(number)
        ]

    def dataset(self, folder: Path, rows: list[tuple[int, str, str]], **values: Any) -> Dataset:
        lines = [f"{y}\t{a}\t{b}" for y, a, b in rows]
        chosen = options(split=SplitRule(seed=7), min_count=3, target_encode=("b", "a"), folds=self.FOLDS)
        return prepare_lines(folder, lines, schema=PAIRS, options=replace(chosen, **values))

    @pytest.mark.parametrize("fit_on", ["train", "all"])
    def test_rates_are_those_of_the_other_folds(self, fit_on: Any, tmp_path: Path) -> None:
        rows = self.rows(400)
        dataset = self.dataset(tmp_path, rows, fit_on=fit_on)
        assert dataset.dense_columns == ("b_target", "a_target")

        drawn = [uniform(row, 7) for row in range(400)]
        splits = ["test" if u < 0.1 else "valid" if u < 0.2 else "train" for u in drawn]
        folds = [int(uniform(row, 7 + (1 << 32)) * self.FOLDS) for row in range(400)]
        for place, field in ((1, "a"), (2, "b")):
            used = [i for i in range(400) if fit_on == "all" or splits[i] == "train"]
            counts = Counter(rows[i][place] for i in used)
            keys = [row[place] if counts[row[place]] >= 3 or row[place] == "" else None for row in rows]
            for split, frame in parts(dataset).items():
                expected = [
                    self.rate(rows, splits, folds, keys, key, folds[i] if split == "train" else None)
                    for i, key in enumerate(keys)
                    if splits[i] == split
                ]
                found = frame[f"{field}_target"].to_numpy()
                np.testing.assert_allclose(found, np.array(expected, np.float32), rtol=1e-6)

    @staticmethod
    def rate(rows: Any, splits: Any, folds: Any, keys: Any, key: Any, fold: int | None) -> float:
        others = [i for i in range(len(rows)) if splits[i] == "train" and (fold is None or folds[i] != fold)]
        prior = sum(rows[i][0] for i in others) / len(others)
        same = [i for i in others if keys[i] == key]
        return float((sum(rows[i][0] for i in same) + SMOOTHING * prior) / (len(same) + SMOOTHING))

    def test_pure_noise_tells_nothing_of_the_labels_of_training(self, tmp_path: Path) -> None:
        draw = random.Random(1)
        lines = [f"{int(draw.random() < 0.5)}\tx\tn{draw.randrange(2500)}" for _ in range(10_000)]
        dataset = prepare_lines(
            tmp_path, lines, schema=PAIRS, options=options(split=SplitRule(), target_encode=("b",))
        )
        train = parts(dataset)["train"]
        out_of_fold = roc_auc_score(train["label"], train["b_target"])
        rates = Encoder.of_dataset(dataset).targets["b"].rates
        with_own_label = roc_auc_score(train["label"], rates[train["b"].to_numpy()])
        assert abs(out_of_fold - 0.5) < 0.02
        assert with_own_label > 0.65  # what the folds prevent

    def test_other_rows_get_the_rates_of_all_training_rows(self, tmp_path: Path) -> None:
        rows = self.rows(300)
        dataset = self.dataset(tmp_path, rows)
        encoder = Encoder.of_dataset(dataset)
        new = write(tmp_path / "new.txt", ["0\tx\tv1", "1\t\tnever seen"])
        frame = pl.read_parquet(transform(encoder, [new], tmp_path / "encoded").file)

        ids = encoder.vocabularies["b"].values.to_list()
        rates = encoder.targets["b"].rates
        assert frame["b_target"].to_list() == [rates[3 + ids.index("v1")], rates[2]]
        clicks: Counter[int] = Counter()
        for label, number in parts(dataset)["train"].select("label", "a").iter_rows():
            clicks[number] += label
        found = encoder.targets["a"].clicks.tolist()
        assert found == [clicks[number] for number in range(len(found))]

    def test_a_damaged_target_does_not_open(self, tmp_path: Path) -> None:
        dataset = self.dataset(tmp_path, self.rows(100))
        dataset.target_file("a").unlink()
        with pytest.raises(Exception, match=r"a.parquet is missing"):
            Dataset.open(dataset.path)


def test_an_encoder_knows_whether_another_makes_the_same_of_rows(tmp_path: Path) -> None:
    chosen = options(count_features=True, target_encode=("a",))

    def encoder(lines: list[str]) -> Encoder:
        return Encoder.of_dataset(prepare_lines(tmp_path, lines, schema=PAIRS, options=chosen))

    lines = ["1\tx\tp", "0\ty\tq", "1\tx\tp", "0\ty\tp"]
    first = encoder(lines)
    assert first.encodes_as(encoder(lines))
    assert not first.encodes_as(encoder([line.replace("1\t", "0\t") for line in lines]))  # other targets
    assert not first.encodes_as(encoder([*lines, "1\tx\tp"]))  # other counts


def test_without_features_there_are_no_columns(tmp_path: Path) -> None:
    dataset = prepare_lines(tmp_path, good_rows(30), options=KEEP_ALL)
    assert dataset.dense_columns == ("n", "m")
    assert not (dataset.path / "target").exists()
