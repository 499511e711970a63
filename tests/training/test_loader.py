"""The loader gives every row once an epoch, in a seeded order."""

from __future__ import annotations

import shutil
from pathlib import Path

import polars as pl
import pytest
import torch

from stampede import DatasetError
from stampede.pipeline.dataset import Dataset
from stampede.training.loader import Batch, DeviceLoader


def rows_of(batches: list[Batch]) -> list[tuple[float, ...]]:
    return [
        tuple(row)
        for batch in batches
        for row in torch.cat([batch.labels[:, None], batch.ids, batch.dense], 1).tolist()
    ]


@pytest.fixture(scope="module")
def dataset(small_dataset: Path) -> Dataset:
    return Dataset.open(small_dataset)


def test_batches_in_order_are_the_parquet_rows(dataset: Dataset) -> None:
    loader = DeviceLoader(dataset, "train", batch_size=100)
    frame = dataset.scan("train").collect()

    batches = list(loader)

    assert torch.cat([b.labels for b in batches]).tolist() == frame["label"].to_list()
    assert torch.cat([b.ids for b in batches]).tolist() == frame.select(dataset.fields).to_numpy().tolist()
    assert torch.equal(
        torch.cat([b.dense for b in batches]),
        torch.from_numpy(frame.select(dataset.dense_columns).to_numpy(order="c", writable=True)),
    )
    assert (batches[0].dense.dtype, batches[0].ids.dtype) == (torch.float32, torch.int32)


@pytest.mark.parametrize("batch_size", [1, 64, 1199, 1_000_000])
def test_an_epoch_has_each_row_once_and_keeps_the_short_last_batch(dataset: Dataset, batch_size: int) -> None:
    loader = DeviceLoader(dataset, "train", batch_size=batch_size)

    batches = list(loader.shuffled(seed=1, epoch=1))

    assert sorted(rows_of(batches)) == sorted(rows_of(list(loader)))
    assert len(batches) == len(loader) == -(-loader.rows // batch_size)
    assert all(len(batch) == batch_size for batch in batches[:-1])


def test_the_order_follows_seed_and_epoch_alone(dataset: Dataset) -> None:
    loader = DeviceLoader(dataset, "train", batch_size=500)

    def order(seed: int, epoch: int) -> list[tuple[float, ...]]:
        return rows_of(list(loader.shuffled(seed=seed, epoch=epoch)))

    torch.manual_seed(7)
    first = order(1, 1)
    torch.rand(3)

    assert order(1, 1) == first
    assert order(1, 2) != first
    assert order(2, 1) != first


def test_an_id_beyond_its_vocabulary_is_refused(small_dataset: Path, tmp_path: Path) -> None:
    shutil.copytree(small_dataset, tmp_path / "ds")
    part = tmp_path / "ds" / "train" / "part-00000.parquet"
    frame = pl.read_parquet(part)
    frame.with_columns(pl.lit(10**6, pl.Int32).alias("C5")).write_parquet(part)

    with pytest.raises(DatasetError, match=r"C5.*1000000"):
        DeviceLoader(Dataset.open(tmp_path / "ds"), "train", batch_size=8)


def test_a_split_that_is_not_there(dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no holdout split"):
        DeviceLoader(dataset, "holdout", batch_size=8)
