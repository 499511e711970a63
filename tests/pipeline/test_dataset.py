"""A dataset that is not whole does not open."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.pipeline.logs import SMALL, TIMED, good_rows, prepare_lines

from stampede import DatasetError
from stampede.pipeline import Dataset, DenseMode, PrepareOptions, SplitRule

OPTIONS = PrepareOptions(split=SplitRule(valid_fraction=0.0, test_fraction=0.25), min_count=1)


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return prepare_lines(tmp_path, good_rows(40), options=OPTIONS)


def refusal(dataset: Dataset) -> str:
    with pytest.raises(DatasetError) as caught:
        Dataset.open(dataset.path)
    message = str(caught.value)
    assert "\n" not in message
    return message


def edit(file: Path, change: Callable[[Any], Any]) -> None:
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))


def test_an_open_dataset_tells_what_it_holds(dataset: Dataset) -> None:
    opened = Dataset.open(str(dataset.path))

    assert opened.rows == {"train": 31, "test": 9}
    assert opened.fields == ("a", "b")
    assert opened.sizes == {"a": 8, "b": 3 + 4}
    assert opened.dense_columns == ("n", "m")
    assert opened.fingerprint == hashlib.sha256((dataset.path / "manifest.json").read_bytes()).hexdigest()
    assert opened.scan("train").collect_schema() == opened.columns() == {
        "label": pl.Int8,
        "n": pl.Float32,
        "m": pl.Float32,
        "a": pl.Int32,
        "a_count": pl.Int32,
        "b": pl.Int32,
        "b_count": pl.Int32,
    }  # fmt: skip
    clicks = opened.scan("test").select(pl.col("label").mean()).collect().item()
    assert opened.manifest.splits["test"].click_rate == clicks


def test_columns_follow_the_options(tmp_path: Path) -> None:
    options = PrepareOptions(dense_null_flag=True, counts=False, min_count=1)
    flagged = prepare_lines(tmp_path, good_rows(40), options=options)
    assert list(flagged.columns()) == ["label", "n", "m", "n_null", "m_null", "a", "b"]

    options = PrepareOptions(dense_mode=DenseMode.LOG_BUCKET, min_count=1)
    bucketed = prepare_lines(tmp_path, good_rows(40, schema=TIMED), schema=TIMED, options=options)
    assert bucketed.dense_columns == ()
    assert bucketed.fields == ("n", "a", "hour_of_day", "weekday")


def test_the_manifest_depends_on_the_data_alone(dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    again = prepare_lines(tmp_path / "elsewhere", good_rows(40), options=OPTIONS)

    assert again.fingerprint == dataset.fingerprint
    assert str(tmp_path) not in (dataset.path / "manifest.json").read_text()


def test_a_split_that_is_not_there_is_named(dataset: Dataset) -> None:
    with pytest.raises(DatasetError, match=r"has no valid split \(it has train, test\)"):
        dataset.scan("valid")


def test_a_folder_that_is_no_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="nowhere does not exist: make a dataset with 'stampede prepare'"):
        Dataset.open(tmp_path / "nowhere")
    with pytest.raises(DatasetError, match=r"has no manifest\.json"):
        Dataset.open(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(DatasetError, match="file"):
        Dataset.open(tmp_path / "file")
    (tmp_path / "manifest.json").mkdir()
    with pytest.raises(DatasetError, match=r"manifest\.json: cannot read it"):
        Dataset.open(tmp_path)
    with pytest.raises(DatasetError):
        Dataset.open("x" * 300)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"{}", b"\xff\xfe", b'{"format_version": "new"}']
)
def test_a_damaged_manifest_is_refused(content: bytes, dataset: Dataset) -> None:
    (dataset.path / "manifest.json").write_bytes(content)

    assert "manifest.json is damaged: " in refusal(dataset)


def test_a_truncated_manifest_is_refused(dataset: Dataset) -> None:
    file = dataset.path / "manifest.json"
    file.write_bytes(file.read_bytes()[:-200])

    assert refusal(dataset).endswith("prepare the dataset again")


@pytest.mark.parametrize("more", [{}, {"engine": "a word that this version does not know"}])
def test_a_newer_format_is_refused(more: dict[str, str], dataset: Dataset) -> None:
    edit(dataset.path / "manifest.json", lambda document: document.update(format_version=2, **more))

    assert "format version 2 is newer than this program reads (1): update stampede-ctr" in refusal(dataset)


def test_a_manifest_with_a_wrong_value_names_its_key(dataset: Dataset) -> None:
    edit(dataset.path / "manifest.json", lambda document: document["fields"][0].update(size="many"))

    assert "fields.0.size" in refusal(dataset)


def test_a_manifest_whose_rows_do_not_add_up_is_refused(dataset: Dataset) -> None:
    edit(dataset.path / "manifest.json", lambda document: document["splits"]["test"].update(rows=13))

    assert "the rows of split test do not add up" in refusal(dataset)


FILES = ["train/part-00000.parquet", "test/part-00000.parquet", "vocab/b.parquet"]


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(name: str, dataset: Dataset) -> None:
    (dataset.path / name).unlink()

    assert refusal(dataset) == f"{dataset.path / name} is missing: prepare the dataset again"


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_cut_or_of_another_kind_is_named(name: str, dataset: Dataset) -> None:
    file = dataset.path / name
    content = file.read_bytes()

    for damaged in (b"", content[:-1], content[: len(content) // 2], b"PAR1" + bytes(100) + b"PAR1", b"text"):
        file.write_bytes(damaged)
        assert refusal(dataset) == f"{file} is damaged: prepare the dataset again"
    file.unlink()
    file.mkdir()
    assert str(file) in refusal(dataset)


@pytest.mark.parametrize("name", FILES)
def test_a_file_with_too_few_rows_is_named(name: str, dataset: Dataset) -> None:
    frame = pl.read_parquet(dataset.path / name)
    frame.head(-1).write_parquet(dataset.path / name)

    expected = f"{name} has {frame.height - 1} rows where the manifest says {frame.height}"
    assert expected in refusal(dataset)


def test_a_file_of_other_columns_or_types_is_named(dataset: Dataset) -> None:
    cases: dict[str, tuple[str, pl.Expr | str]] = {
        "train/part-00000.parquet": ("a", pl.col("a").cast(pl.Int64)),
        "test/part-00000.parquet": ("m", "m"),
        "vocab/a.parquet": ("value", pl.col("value").cast(pl.Categorical)),
        "vocab/b.parquet": ("more", pl.lit(1).alias("more")),
    }
    for name, (column, change) in cases.items():
        file = dataset.path / name
        content = file.read_bytes()
        frame = pl.read_parquet(file)
        changed = frame.drop(change) if isinstance(change, str) else frame.with_columns(change)
        changed.write_parquet(file)
        assert f"{name}: column {column} is not as the manifest says" in refusal(dataset)
        file.write_bytes(content)
    assert Dataset.open(dataset.path).rows == dataset.rows


def test_a_dataset_opens_where_it_was_moved_to(dataset: Dataset, tmp_path: Path) -> None:
    shutil.move(dataset.path, tmp_path / "moved")

    assert Dataset.open(tmp_path / "moved").fingerprint == dataset.fingerprint


def test_the_contract_loads_no_plan_code() -> None:
    code = (
        "import sys, stampede.pipeline.dataset\n"
        "print(*[name for name in sys.modules if name.startswith('stampede.pipeline.')])"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    names = ("dataset", "errors", "publish", "schema")
    assert set(loaded.split()) == {f"stampede.pipeline.{name}" for name in names}


def test_row_groups_are_large(tmp_path: Path) -> None:
    dataset = prepare_lines(tmp_path, good_rows(300_000), options=OPTIONS)

    file = dataset.path / dataset.manifest.splits["train"].files[0].path
    parquet = pytest.importorskip("pyarrow.parquet")
    metadata = parquet.ParquetFile(file).metadata
    groups = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
    assert all(rows >= 1 << 17 for rows in groups[:-1])
    assert len(groups) == 1 + (sum(groups) - 1) // (1 << 17)
    assert all(metadata.row_group(0).column(i).compression == "ZSTD" for i in range(7))
    assert SMALL.name == dataset.manifest.log.name
