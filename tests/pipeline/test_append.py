"""A later file as a further split of a dataset."""

from __future__ import annotations

import errno
import gzip
import shutil
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from tests.pipeline.logs import (
    KEEP_ALL,
    SMALL,
    good_rows,
    parts,
    prepare_lines,
    rejected,
    vocabularies,
    write,
)

from stampede import ConfigError, DatasetError, InputError, StampedeError
from stampede.pipeline import Dataset, Encoder, PrepareOptions, Schema, append_split, prepare, publish
from stampede.pipeline.progress import Silent
from stampede.pipeline.transform import transform

FEATURES = PrepareOptions(
    min_count=2,
    hash_buckets=2,
    crosses=(("a", "b"),),
    count_features=True,
    target_encode=("a",),
    bad_rows="skip",
)
LATER = [*good_rows(20)[::-1], "1\t2\t3\tnew\t", "0\t\t\t\tb1"]


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return prepare_lines(tmp_path, [*good_rows(60), "bad row"], options=FEATURES)


def test_the_split_is_what_transform_gives_and_all_else_stays(dataset: Dataset, tmp_path: Path) -> None:
    before = parts(dataset) | vocabularies(dataset)
    later = write(tmp_path / "later.txt", LATER)
    encoded = transform(
        Encoder.of_dataset(dataset), [later], tmp_path / "encoded", counts=True, keep_label=True
    )

    grown = append_split(SMALL, [later], dataset.path, "day_2")
    assert list(grown.rows) == ["train", "valid", "test", "day_2"]
    assert_frame_equal(grown.scan("day_2").collect(), pl.read_parquet(encoded.file))
    assert grown.manifest.splits["day_2"].click_rate == pytest.approx(
        grown.scan("day_2").collect()["label"].mean()
    )
    after = parts(grown) | vocabularies(grown)
    assert all(after[name].equals(frame) for name, frame in before.items())
    same = {"splits", "earlier"}
    assert grown.manifest.model_dump(exclude=same) == dataset.manifest.model_dump(exclude=same)
    assert grown.manifest.earlier == (dataset.fingerprint,)

    third = append_split(SMALL, [gzipped(later)], dataset.path, "day_3")
    assert third.scan("day_3").collect().equals(third.scan("day_2").collect())
    assert third.manifest.earlier == (dataset.fingerprint, grown.fingerprint)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def gzipped(file: Path) -> Path:
    packed = file.with_suffix(".gz")
    packed.write_bytes(gzip.compress(file.read_bytes(), mtime=0))
    return packed


def test_rows_that_were_left_out_are_listed_with_the_earlier_ones(dataset: Dataset, tmp_path: Path) -> None:
    later = write(tmp_path / "later.txt", [*LATER, "1\tx\t1\ta\tb"])
    with pytest.raises(InputError, match=r"later.txt.*23.*'x' is not a finite number"):
        append_split(SMALL, [later], dataset.path, "day_2")
    assert Dataset.open(dataset.path).fingerprint == dataset.fingerprint

    grown = append_split(SMALL, [later], dataset.path, "day_2", bad_rows="skip")
    assert grown.manifest.rejected == 2
    assert [(row["file"], row["line"]) for row in rejected(grown)] == [("log.txt", 61), ("later.txt", 23)]


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("train", DatasetError, "has a split train"),
        ("vocab", ConfigError, "has a file of this name"),
        ("../up", ConfigError, "take a name of at most 100 letters"),
        ("", ConfigError, "take a name of at most 100 letters"),
        (".hidden", ConfigError, "take a name of at most 100 letters"),
    ],
)
def test_a_name_that_cannot_be(
    name: str, error: type[StampedeError], message: str, dataset: Dataset, tmp_path: Path
) -> None:
    later = write(tmp_path / "later.txt", LATER)
    with pytest.raises(error, match=message):
        append_split(SMALL, [later], dataset.path, name)
    assert Dataset.open(dataset.path).fingerprint == dataset.fingerprint


def test_another_log_is_refused(dataset: Dataset, tmp_path: Path) -> None:
    later = write(tmp_path / "later.txt", LATER)
    other = Schema(name="other", label="y", dense=("n",), categorical=("a", "b"))
    with pytest.raises(ConfigError, match=r"is of another log.*\(small\)"):
        append_split(other, [later], dataset.path, "day_2")
    with pytest.raises(DatasetError, match="make a dataset with"):
        append_split(SMALL, [later], tmp_path / "nowhere", "day_2")


def test_what_is_done_to_the_dataset_meanwhile_is_not_lost(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = write(tmp_path / "later.txt", LATER)

    class Meanwhile(Silent):
        """Another one adds a split, or replaces the dataset, while rows are encoded."""

        def __init__(self, other: Callable[[], object]) -> None:
            self.other = other

        def start(self, stage: str, total: int | None) -> None:
            if stage == "encode":
                self.other()

    append_first = Meanwhile(lambda: append_split(SMALL, [later], dataset.path, "first"))
    with pytest.raises(DatasetError, match="was changed meanwhile: run this again"):
        append_split(SMALL, [later], dataset.path, "second", progress=append_first)
    assert list(Dataset.open(dataset.path).rows) == ["train", "valid", "test", "first"]

    def replace_it() -> None:
        prepare(SMALL, [later], dataset.path, options=KEEP_ALL, force=True)

    with pytest.raises(DatasetError, match="was changed meanwhile: run this again"):
        append_split(SMALL, [later], dataset.path, "second", progress=Meanwhile(replace_it))
    assert Dataset.open(dataset.path).rows == {"train": 22}
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_folder_that_is_no_split_is_in_the_way(dataset: Dataset, tmp_path: Path) -> None:
    shutil.copytree(dataset.path / "valid", dataset.path / "day_2")
    later = write(tmp_path / "later.txt", LATER)
    with pytest.raises(DatasetError, match="day_2 is there and no split: remove it"):
        append_split(SMALL, [later], dataset.path, "day_2")


def test_a_list_of_rejected_rows_that_is_gone_is_told_first(dataset: Dataset, tmp_path: Path) -> None:
    (dataset.path / "rejected.parquet").unlink()
    with pytest.raises(DatasetError, match=r"rejected.parquet is missing or damaged"):
        append_split(SMALL, [tmp_path / "not even looked at"], dataset.path, "day_2")


def test_a_linked_dataset_is_found(dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(dataset.path)
    later = write(tmp_path / "later.txt", LATER)
    assert append_split(SMALL, [later], tmp_path / "link", "day_2").path == dataset.path
    assert (tmp_path / "link").is_symlink()


def test_files_are_copied_where_there_are_no_links(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_link(target: Path, source: Path) -> None:
        raise PermissionError(errno.EPERM, "no links here")

    monkeypatch.setattr(Path, "hardlink_to", no_link)
    later = write(tmp_path / "later.txt", LATER)
    assert append_split(SMALL, [later], dataset.path, "day_2").rows["day_2"] == 22


def test_a_death_before_the_exchange_leaves_the_dataset_as_it_was(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Death(BaseException):
        pass

    def die(folder: Path, target: Path, **options: object) -> None:
        raise Death

    later = write(tmp_path / "later.txt", LATER)
    with monkeypatch.context() as patch:
        patch.setattr(publish, "_put_in_place", die)
        patch.setattr(shutil, "rmtree", lambda *arguments, **options: None)
        with pytest.raises(Death):
            append_split(SMALL, [later], dataset.path, "day_2")
    assert Dataset.open(dataset.path).fingerprint == dataset.fingerprint
    assert append_split(SMALL, [later], dataset.path, "day_2").rows["day_2"] == 22
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_dataset_without_rejected_rows_stays_without(tmp_path: Path) -> None:
    dataset = prepare_lines(tmp_path, good_rows(10), options=KEEP_ALL)
    later = write(tmp_path / "later.txt", good_rows(3))
    grown = append_split(SMALL, [later], dataset.path, "more")
    assert grown.manifest.rejected == 0
    assert not (grown.path / "rejected.parquet").exists()
