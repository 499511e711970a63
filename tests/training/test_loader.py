"""A loader gives every row once an epoch, in a seeded order; the one that fits is chosen."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

import polars as pl
import pytest
import torch

from stampede import ConfigError, DatasetError
from stampede.pipeline.dataset import Dataset
from stampede.training import loader as loader_module
from stampede.training.batch import Batch
from stampede.training.loader import open_loader
from stampede.training.memory import available_memory
from stampede.training.order import epoch_order
from stampede.training.resident import DeviceLoader


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


def test_the_order_of_a_seed_and_epoch_stays_what_it_was() -> None:
    order = epoch_order(12, seed=3, epoch=2, device=torch.device("cpu"))

    assert order.tolist() == [4, 11, 8, 5, 10, 7, 1, 0, 3, 2, 6, 9]


@pytest.mark.parametrize("batch_size", [64, 1_000_000])
def test_an_epoch_taken_up_at_a_batch_goes_on_as_the_whole_one_does(
    dataset: Dataset, batch_size: int
) -> None:
    loader = DeviceLoader(dataset, "train", batch_size=batch_size)
    whole = list(loader.shuffled(seed=1, epoch=1))

    for first in range(len(loader) + 1):
        tail = list(loader.shuffled(seed=1, epoch=1, first=first))
        assert len(tail) == len(whole) - first
        assert rows_of(tail) == rows_of(whole[first:])


@pytest.mark.parametrize("first", [-1, 4])
def test_an_epoch_cannot_begin_beyond_its_end(dataset: Dataset, first: int) -> None:
    loader = DeviceLoader(dataset, "train", batch_size=500)

    with pytest.raises(ConfigError, match=f"epoch of 3 batches cannot begin with number {first}"):
        loader.shuffled(seed=1, epoch=1, first=first)


def test_dense_values_in_half_the_memory(dataset: Dataset) -> None:
    exact = DeviceLoader(dataset, "train", batch_size=100)
    rounded = DeviceLoader(dataset, "train", batch_size=100, dense_dtype=torch.bfloat16)

    for one, other in zip(exact, rounded, strict=True):
        assert torch.equal(one.dense.bfloat16(), other.dense)
        assert torch.equal(one.ids, other.ids)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("C5", 10**6, r"C5.*1000000"),
        ("C5", -1, r"C5.*-1"),
        ("label", 2, "labels other than 0 and 1"),
        ("I3", float("inf"), "dense values that are not finite"),
    ],
)
def test_a_value_out_of_its_range_is_refused(
    small_dataset: Path, tmp_path: Path, column: str, value: float, message: str
) -> None:
    shutil.copytree(small_dataset, tmp_path / "ds")
    part = tmp_path / "ds" / "train" / "part-00000.parquet"
    frame = pl.read_parquet(part)
    frame.with_columns(pl.lit(value).cast(frame.schema[column]).alias(column)).write_parquet(part)

    with pytest.raises(DatasetError, match=rf"part-00000.parquet, split train, .*{message}"):
        DeviceLoader(Dataset.open(tmp_path / "ds"), "train", batch_size=8)


def test_a_split_that_is_not_there(dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no holdout split"):
        DeviceLoader(dataset, "holdout", batch_size=8)


def test_the_kind_that_was_asked_for_is_opened(dataset: Dataset) -> None:
    device = open_loader(dataset, "train", batch_size=100, kind="device", memory=0)
    stream = open_loader(dataset, "train", batch_size=100, kind="stream", memory=10**8)

    assert (device.kind, stream.kind) == ("device", "stream")
    assert device.order != stream.order
    assert rows_of(list(device)) == rows_of(list(stream))
    assert (device.rows, len(device)) == (stream.rows, len(stream))
    assert device.describe() == f"loader: device, {device.rows:,} rows on cpu (0 MB)"
    assert stream.describe().startswith(f"loader: stream, {stream.rows:,} rows, window of 1 row group (")


@pytest.mark.parametrize(("available", "kind"), [(1.99, "stream"), (2.01, "device")])
def test_auto_takes_the_device_where_the_split_fits_in_half_of_what_is_left(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch, available: float, kind: str
) -> None:
    taken = dataset.rows["train"] * (4 * len(dataset.fields) + 4 * len(dataset.dense_columns) + 1)
    monkeypatch.setattr(loader_module, "available_memory", lambda: int(available * taken))

    assert open_loader(dataset, "train", batch_size=100, memory=10**8).kind == kind


def test_a_stream_that_has_too_little_memory(dataset: Dataset) -> None:
    with pytest.raises(ConfigError, match=r"split train takes [\d,]+ bytes .* may have 12,345"):
        open_loader(dataset, "train", batch_size=100, kind="stream", memory=12_345)


@pytest.mark.parametrize("kind", ["auto", "device", "stream"])
def test_no_kind_opens_a_split_that_is_not_there(
    dataset: Dataset, kind: Literal["auto", "device", "stream"]
) -> None:
    with pytest.raises(DatasetError, match="no holdout split"):
        open_loader(dataset, "holdout", batch_size=100, kind=kind, memory=10**8)


MEMINFO = {"proc/meminfo": "MemTotal:    9000 kB\nMemAvailable:    8000 kB\n"}
V2 = "sys/fs/cgroup"
V1 = "sys/fs/cgroup/memory"


@pytest.mark.parametrize(
    ("files", "left"),
    [
        pytest.param({}, 8_192_000, id="no group"),
        pytest.param(
            {"proc/self/cgroup": "0::/a/b\n", f"{V2}/a/b/memory.max": "max"}, 8_192_000, id="no limit"
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/a/b\n",
                f"{V2}/a/memory.max": "5000000\n",
                f"{V2}/a/memory.current": "2000000\n",
                f"{V2}/a/memory.stat": "anon 1500000\ninactive_file 400000\n",
            },
            3_400_000,
            id="a group above, whose cache can be dropped",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/of/the/host\n",
                f"{V2}/memory.max": "5000000\n",
                f"{V2}/memory.current": "2000000\n",
            },
            3_000_000,
            id="a container's own group at the top",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/a\n3:memory:/a\n",
                f"{V1}/a/memory.limit_in_bytes": "5000000\n",
                f"{V1}/a/memory.usage_in_bytes": "6000000\n",
                f"{V1}/a/memory.stat": "total_inactive_file 100\n",
            },
            0,
            id="version 1, over its limit",
        ),
    ],
)
def test_the_memory_that_is_left_is_the_least_that_machine_and_groups_leave(
    tmp_path: Path, files: dict[str, str], left: int
) -> None:
    for name, text in (MEMINFO | files).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    assert available_memory(tmp_path) == left
