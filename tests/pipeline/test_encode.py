"""An encoder turns new rows into what training saw, wherever it was stored meanwhile."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from tests.pipeline.logs import EVERY_ROW, SMALL, good_rows, parts, prepare_lines, write

from stampede import CheckpointError
from stampede.pipeline import Dataset, DenseMode, Encoder, PrepareOptions
from stampede.pipeline.encode import DatasetOrigin
from stampede.pipeline.spool import Spool, write_spool

ORIGIN = DatasetOrigin(path="data/small", fingerprint="0" * 64)
OPTIONS = [
    PrepareOptions(split=EVERY_ROW, dense_mode=mode, hash_buckets=buckets, min_count=3)
    for mode in DenseMode
    for buckets in (0, 5)
]


def spool_of(folder: Path) -> Spool:
    return write_spool([folder / "log.txt"], SMALL, folder / "spool")


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return prepare_lines(tmp_path, good_rows(50))


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: f"{o.dense_mode}-{o.hash_buckets}")
def test_a_stored_encoder_gives_the_rows_of_the_dataset(options: PrepareOptions, tmp_path: Path) -> None:
    dataset = prepare_lines(tmp_path, good_rows(50), options=options)
    (tmp_path / "run").mkdir()
    Encoder.of_dataset(dataset).save(tmp_path / "run", ORIGIN)

    encoder, origin = Encoder.load(tmp_path / "run")

    encoded = encoder.encode(spool_of(tmp_path).scan(), counts=True, keep=("label",)).collect()
    assert origin == ORIGIN
    assert_frame_equal(encoded, parts(dataset)["train"], check_exact=True)


def test_rows_without_a_label_are_encoded_alike(dataset: Dataset, tmp_path: Path) -> None:
    unlabelled = write(tmp_path / "new.txt", [row.partition("\t")[2] for row in good_rows(50)])
    spool = write_spool([unlabelled], SMALL, tmp_path / "new", with_label=False)

    encoded = Encoder.of_dataset(dataset).encode(spool.scan(), counts=False).collect()

    assert_frame_equal(encoded, parts(dataset)["train"].select(encoded.columns), check_exact=True)


def test_a_run_that_is_not_whole_is_refused(dataset: Dataset, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with pytest.raises(CheckpointError, match=r"encoder\.json is missing"):
        Encoder.load(run)

    Encoder.of_dataset(dataset).save(run, ORIGIN)
    book = run / "vocab" / "b.parquet"
    content = book.read_bytes()
    book.unlink()
    with pytest.raises(CheckpointError, match=r"b\.parquet is missing"):
        Encoder.load(run)
    for damaged in (b"", content[:-9]):
        book.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"the encoder in .* is damaged"):
            Encoder.load(run)
    pl.DataFrame({"id": [0]}).write_parquet(book)
    with pytest.raises(CheckpointError, match=r"the encoder in .* is damaged"):
        Encoder.load(run)
    (run / "encoder.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"the encoder in .* is damaged"):
        Encoder.load(run)
