"""A vocabulary that grows by the values of a later split."""

from __future__ import annotations

import hashlib
import random
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from tests.pipeline.logs import (
    EVERY_ROW,
    KEEP_ALL,
    SMALL,
    good_rows,
    parts,
    prepare_lines,
    vocabularies,
    write,
)

from stampede import ConfigError
from stampede.pipeline import Dataset, Encoder, PrepareOptions, append_split, fit, publish
from stampede.pipeline import grow as grow_module
from stampede.pipeline.dataset import DenseMode
from stampede.pipeline.grow import GrowOptions, are_grown_from, ids_before
from stampede.pipeline.inspect import summarise_fields
from stampede.pipeline.transform import transform
from stampede.pipeline.vocabulary import Vocabulary
from stampede.pipeline.vocabulary import count_plan as plain_count_plan

GROW = GrowOptions()

# label, n, m, a, b
FIRST = ["1\t1\t1\tx\tp", "0\t1\t1\tx\tp", "0\t1\t1\ty\tp", "1\t1\t1\t\tq", "0\t1\t1\trare\tq"]
SECOND = [
    "1\t9\t1\tnew2\tp",
    "0\t9\t1\tnew2\tp",
    "1\t9\t1\tnew1\tq",
    "0\t9\t1\tnew1\tq",
    "0\t9\t1\tnew3\tr",
    "0\t9\t1\tnew3\tr",
    "0\t9\t1\tnew3\t",
    "0\t9\t1\tx\t",
    "0\t9\t1\trare\tp",
    "0\t9\t1\tonce\tp",
    "0\t9\t1\t\tp",
]


def book(dataset: Dataset, field: str) -> list[tuple[int, str | None, int]]:
    frame = pl.read_parquet(dataset.vocabulary_file(field), glob=False)
    return [(int(i), value, int(count)) for i, value, count in frame.iter_rows()]


def append(dataset: Dataset, lines: list[str], split: str, *, grow: GrowOptions | None = GROW) -> Dataset:
    later = write(dataset.path.parent / f"{split}.txt", lines)
    return append_split(SMALL, [later], dataset.path, split, grow=grow)


def test_new_values_follow_on_all_ids_by_count_then_bytes(tmp_path: Path) -> None:
    dataset = prepare_lines(tmp_path, FIRST, options=replace(KEEP_ALL, min_count=2))
    assert book(dataset, "a") == [(0, None, 0), (1, None, 1), (2, None, 2), (3, "x", 2)]

    grown = append(dataset, SECOND, "day_2")

    # by hand: 3 rows of new3, 2 each of new1 and new2; rare and once have too few in these rows
    assert book(grown, "a") == [
        (0, None, 0),
        (1, None, 2),
        (2, None, 4),
        (3, "x", 3),
        (4, "new3", 3),
        (5, "new1", 2),
        (6, "new2", 2),
    ]
    assert grown.scan("day_2").collect()["a"].to_list() == [6, 6, 5, 5, 4, 4, 4, 3, 2, 2, 1]
    assert grown.scan("day_2").collect()["a_count"].to_list() == [2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 2]
    info = {field.name: (field.size, field.null, field.rare) for field in grown.manifest.fields}
    assert info["a"] == (7, 2, 4)
    growth = grown.manifest.growths[0]
    assert (growth.split, growth.rows, growth.min_count) == ("day_2", 11, 2)
    assert growth.ids == {"a": 3, "b": 1}


def test_everything_else_stays(tmp_path: Path) -> None:
    dataset = prepare_lines(tmp_path, good_rows(60), options=PrepareOptions(min_count=2))
    before = {split: frame for split, frame in parts(dataset).items()}
    inodes = {path: path.stat().st_ino for path in dataset.path.rglob("part-*")}

    grown = append(dataset, SECOND, "day_2")

    after = parts(grown)
    assert all(after[split].equals(frame) for split, frame in before.items())
    assert {path: path.stat().st_ino for path in inodes} == inodes  # linked, not copied
    assert grown.manifest.dense == dataset.manifest.dense
    assert grown.manifest.earlier == (dataset.fingerprint,)
    assert {split: info.growths for split, info in grown.manifest.splits.items()} == {
        "train": 0, "valid": 0, "test": 0, "day_2": 1,
    }  # fmt: skip


def test_min_count_may_be_given(tmp_path: Path) -> None:
    dataset = prepare_lines(tmp_path, FIRST, options=replace(KEEP_ALL, min_count=2))

    grown = append(dataset, SECOND, "day_2", grow=GrowOptions(min_count=1))

    assert [value for _, value, _ in book(grown, "a")[4:]] == ["new3", "new1", "new2", "once", "rare"]
    assert grown.manifest.growths[0].min_count == 1
    assert grown.manifest.min_count == 2
    with pytest.raises(ConfigError, match="--min-count 0: it must be 1 or more"):
        GrowOptions(min_count=0)


def test_max_size_is_kept_to(tmp_path: Path) -> None:
    dataset = prepare_lines(tmp_path, FIRST, options=replace(KEEP_ALL, min_count=2, max_size=2))

    grown = append(dataset, SECOND, "day_2")

    # x and one more; b has p and q already
    assert book(grown, "a")[3:] == [(3, "x", 3), (4, "new3", 3)]
    assert [value for _, value, _ in book(grown, "b")[3:]] == ["p", "q"]
    again = append(grown, [line.replace("new", "newer") for line in SECOND], "day_3")
    assert again.sizes == grown.sizes


def test_hash_buckets_stay_where_they_are(tmp_path: Path) -> None:
    dataset = prepare_lines(tmp_path, FIRST, options=replace(KEEP_ALL, min_count=2, hash_buckets=3))
    old = Encoder.of_dataset(dataset).vocabularies

    grown = append(append(dataset, SECOND, "day_2"), [*SECOND, *["1\t1\t1\tlate\tp"] * 2], "day_3")

    def bucket(value: str) -> int:
        return 4 + int.from_bytes(hashlib.blake2b(value.encode(), digest_size=8).digest(), "little") % 3

    assert [value for _, value, _ in book(grown, "a")] == [
        None, None, None, "x", None, None, None, "new3", "new1", "new2", "late",
    ]  # fmt: skip
    ids = grown.scan("day_3").collect()["a"].to_list()
    assert ids == [9, 9, 8, 8, 7, 7, 7, 3, bucket("rare"), bucket("once"), 1, 10, 10]
    assert sum(count for _, _, count in book(grown, "a")) == len(FIRST) + 2 * len(SECOND) + 2
    loaded = Vocabulary.load(grown.vocabulary_file("a"))
    assert (loaded.buckets, loaded.before_buckets, loaded.after_buckets) == (3, 1, 4)
    assert loaded.value_counts.tolist() == [4, 6, 4, 4, 2]
    new = Encoder.of_dataset(grown).vocabularies
    assert are_grown_from(new, old)
    assert not are_grown_from(old, new)
    before = ids_before(new, old)[0].tolist()
    assert before == [*range(7), bucket("new3"), bucket("new1"), bucket("new2"), bucket("late")]


class Reference:
    """A growing vocabulary in plain Python, written from the contract."""

    def __init__(self, min_count: int, max_size: int | None, buckets: int) -> None:
        self.min_count, self.max_size, self.buckets = min_count, max_size, buckets
        self.ids: dict[str, int] = {}
        self.first: int | None = None
        self.counts: list[int] = [0, 0, 0]

    def take(self, values: list[str | None]) -> list[int]:
        """Take the values of a day in, and return their ids."""
        occurrences = Counter(value for value in values if value is not None)
        candidates = [v for v, n in occurrences.items() if n >= self.min_count and v not in self.ids]
        candidates.sort(key=lambda value: (-occurrences[value], value.encode()))
        for value in candidates:
            if self.max_size is None or len(self.ids) < self.max_size:
                self.ids[value] = len(self.counts)
                self.counts.append(0)
        if self.first is None:
            self.first = len(self.counts)
            self.counts += [0] * self.buckets
        found = [self.id_of(value) for value in values]
        for each in found:
            self.counts[each] += 1
        return found

    def id_of(self, value: str | None) -> int:
        if value is None:
            return 1
        if value in self.ids:
            return self.ids[value]
        if not self.buckets:
            return 2
        assert self.first is not None
        digest = hashlib.blake2b(value.encode(), digest_size=8).digest()
        return self.first + int.from_bytes(digest, "little") % self.buckets


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("parts_of_fields", [1, 3])
def test_it_is_what_plain_python_makes(
    seed: int, parts_of_fields: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        grow_module, "passes_to_count", lambda rows, values, **_: dict.fromkeys(values, parts_of_fields)
    )
    draw = random.Random(seed)
    options: dict[str, Any] = {
        "min_count": draw.choice([1, 2, 3]),
        "max_size": draw.choice([None, 6, 25]),
        "hash_buckets": draw.choice([0, 0, 4]),
    }
    crossed = draw.random() < 0.5
    alphabet = [*"abcdefghijklmnopqrstuvwxyz", "05e00000", "ä", "é", "€", "\U0001f600", "007", "7", ""]

    def day(number: int) -> list[tuple[str, str]]:
        known = alphabet[: 8 + 8 * number]
        return [
            (draw.choice(known), f"{draw.choice(known)}{draw.randint(0, 2)}")
            for _ in range(draw.randint(5, 60))
        ]

    days = [day(number) for number in range(4)]
    fields = ["a", "b", *(["a_x_b"] if crossed else [])]
    books = {f: Reference(options["min_count"], options["max_size"], options["hash_buckets"]) for f in fields}

    def values_of(field: str, rows: list[tuple[str, str]]) -> list[str | None]:
        if field == "a_x_b":
            return [f"{a}\x1f{b}" for a, b in rows]
        return [row["ab".index(field)] or None for row in rows]

    dataset: Dataset | None = None
    for number, rows in enumerate(days):
        lines = [f"{i % 2}\t1\t{i}\t{a}\t{b}" for i, (a, b) in enumerate(rows)]
        if dataset is None:
            split = "train"
            chosen = PrepareOptions(split=EVERY_ROW, crosses=(("a", "b"),) if crossed else (), **options)
            dataset = prepare_lines(tmp_path, lines, options=chosen)
        else:
            split = f"day_{number}"
            dataset = append(dataset, lines, split)
        found = dataset.scan(split).collect()
        for field, reference in books.items():
            ids = reference.take(values_of(field, rows))
            assert found[field].to_list() == ids
            assert found[f"{field}_count"].to_list() == [reference.counts[i] for i in ids]
            stored = book(dataset, field)
            assert [count for _, _, count in stored] == reference.counts
            assert {value: i for i, value, _ in stored if value is not None} == reference.ids


def test_the_same_rows_again_bring_no_ids(tmp_path: Path) -> None:
    dataset = prepare_lines(tmp_path, FIRST, options=replace(KEEP_ALL, min_count=2))
    once = append(dataset, SECOND, "day_2")

    twice = append(once, SECOND, "day_2_again")

    assert twice.sizes == once.sizes
    assert all(number == 0 for number in twice.manifest.growths[1].ids.values())
    ids = pl.col("a", "b")
    assert_frame_equal(
        twice.scan("day_2_again").select(ids).collect(), twice.scan("day_2").select(ids).collect()
    )


def test_without_growth_a_later_split_is_encoded_by_what_grew_before(tmp_path: Path) -> None:
    dataset = prepare_lines(tmp_path, FIRST, options=replace(KEEP_ALL, min_count=2))
    grown = append(dataset, SECOND, "day_2")

    third = append(grown, [*SECOND, "1\t1\t1\tunknown\tp"], "day_3", grow=None)

    assert third.scan("day_3").collect()["a"].to_list() == [6, 6, 5, 5, 4, 4, 4, 3, 2, 2, 1, 2]
    assert third.manifest.splits["day_3"].growths == 1
    assert len(third.manifest.growths) == 1
    encoded = transform(
        Encoder.of_dataset(third), [tmp_path / "day_3.txt"], tmp_path / "encoded", counts=True
    )
    assert_frame_equal(pl.read_parquet(encoded.file), third.scan("day_3").collect().drop("label"))


def test_numbers_that_are_categories_grow_too(tmp_path: Path) -> None:
    options = replace(KEEP_ALL, min_count=2, dense_mode=DenseMode.LOG_BUCKET)
    grown = append(prepare_lines(tmp_path, FIRST, options=options), SECOND, "day_2")

    assert grown.manifest.growths[0].ids == {"n": 1, "m": 0, "a": 3, "b": 1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (replace(KEEP_ALL, count_features=True), "--grow-vocab: .* made with --count-features"),
        (replace(KEEP_ALL, target_encode=("a",)), "--grow-vocab: .* made with --target-encode"),
    ],
)
def test_features_that_a_growth_would_change_are_refused(
    options: PrepareOptions, message: str, tmp_path: Path
) -> None:
    dataset = prepare_lines(tmp_path, FIRST, options=options)
    with pytest.raises(ConfigError, match=message):
        append(dataset, SECOND, "day_2")
    assert Dataset.open(dataset.path).fingerprint == dataset.fingerprint


def test_a_dataset_with_a_workflow_of_nvtabular_is_refused(tmp_path: Path) -> None:
    dataset = prepare_lines(tmp_path, FIRST)
    (dataset.path / "nvtabular_workflow").mkdir()
    with pytest.raises(ConfigError, match="made with --engine nvtabular"):
        append(dataset, SECOND, "day_2")


def test_a_death_before_the_exchange_leaves_the_old_vocabularies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Death(BaseException):
        pass

    def die(folder: Path, target: Path, **options: object) -> None:
        raise Death

    dataset = prepare_lines(tmp_path, FIRST, options=replace(KEEP_ALL, min_count=2))
    before = parts(dataset) | vocabularies(dataset)
    with monkeypatch.context() as patch:
        patch.setattr(publish, "_put_in_place", die)
        patch.setattr(shutil, "rmtree", lambda *arguments, **options: None)
        with pytest.raises(Death):
            append(dataset, SECOND, "day_2")

    same = Dataset.open(dataset.path)
    assert same.fingerprint == dataset.fingerprint
    after = parts(same) | vocabularies(same)
    assert all(after[name].equals(frame) for name, frame in before.items())
    assert append(same, SECOND, "day_2").sizes["a"] == 7
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_large_fields_are_counted_in_passes_that_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"1\t1\t1\tvalue{i}\tp" for i in range(3000)]
    monkeypatch.setattr(
        grow_module,
        "passes_to_count",
        lambda rows, values, *, total, memory: fit.passes_to_count(rows, values, total=total, memory=100_000),
    )
    dataset = prepare_lines(tmp_path, FIRST)
    passes: list[int] = []

    def count_plan(rows: pl.LazyFrame, value: pl.Expr, *, part: int = 0, parts: int = 1) -> pl.LazyFrame:
        passes.append(parts)
        return plain_count_plan(rows, value, part=part, parts=parts)

    monkeypatch.setattr(fit, "count_plan", count_plan)
    grown = append(dataset, lines, "day_2")

    assert max(passes) > 5
    assert [value for _, value, _ in book(grown, "a")][-3000:] == sorted(f"value{i}" for i in range(3000))


def test_inspect_summarises_what_grew(tmp_path: Path) -> None:
    dataset = prepare_lines(tmp_path, FIRST, options=replace(KEEP_ALL, min_count=2))
    grown = append(dataset, [*SECOND, *["1\t1\t1\tnew3\tp"] * 9], "day_2")

    (a, _) = summarise_fields(grown)

    assert a.rows == len(FIRST) + len(SECOND) + 9
    assert a.top_values[:2] == (("new3", 12 / 25), ("x", 3 / 25))
