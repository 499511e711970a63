"""The stream gives every row once an epoch, in an order that resumes at any batch, in bounded memory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain, islice, pairwise
from pathlib import Path

import polars as pl
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stampede import ConfigError, DatasetError
from stampede.pipeline.dataset import Dataset, DenseInfo, FieldInfo, Manifest, PartInfo, SplitInfo
from stampede.training.batch import Batch
from stampede.training.prefetch import THREAD_NAME, filled
from stampede.training.resident import DeviceLoader
from stampede.training.rowgroups import RowGroup, SplitReader
from stampede.training.stream import StreamLoader, epoch_windows

ROW_IDS = 1 << 20

Make = Callable[..., Dataset]


@pytest.fixture(scope="module")
def make(small_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Make a dataset of one dense column and two fields, of which C1 is the row's number."""
    template = Dataset.open(small_dataset).manifest

    def make(
        *parts: int, group_rows: int = 1 << 17, n_dense: int = 1, change: pl.Expr | None = None
    ) -> Dataset:
        folder = tmp_path_factory.mktemp("stream")
        (folder / "train").mkdir()
        files, first = [], 0
        for number, rows in enumerate(parts):
            row = pl.int_range(first, first + rows, eager=True, dtype=pl.Int32)
            frame = pl.DataFrame(
                {
                    "label": (row % 2).cast(pl.Int8),
                    **{f"I{column}": row.cast(pl.Float32) / 4 + column for column in range(n_dense)},
                    "C1": row,
                    "C2": row % 3,
                }
            )
            if change is not None:
                frame = frame.with_columns(change)
            name = f"train/part-{number:05}.parquet"
            frame.write_parquet(folder / name, row_group_size=group_rows)
            files.append(PartInfo(path=name, rows=rows))
            first += rows
        manifest: Manifest = template.model_copy(
            update={
                "fields": tuple(
                    FieldInfo(name=name, size=size, null=0, rare=0)
                    for name, size in (("C1", ROW_IDS), ("C2", 3))
                ),
                "dense": tuple(
                    DenseInfo(name=f"I{column}", null=0, minimum=0, maximum=1) for column in range(n_dense)
                ),
                "counts": False,
                "splits": {"train": SplitInfo(rows=first, click_rate=0.5, files=tuple(files))},
            }
        )
        (folder / "manifest.json").write_text(manifest.to_json())
        return Dataset(folder, manifest, "")

    return make


def open_stream(dataset: Dataset, *, memory: int, batch_size: int, group_rows: int) -> StreamLoader:
    """Open a stream with so much memory, or the least that it can do with, which the error must say."""
    try:
        return StreamLoader(dataset, "train", memory=memory, batch_size=batch_size, group_rows=group_rows)
    except ConfigError as error:
        needed = int(re.findall(r"takes ([\d,]+) bytes", str(error))[0].replace(",", ""))
        assert needed > memory
        return StreamLoader(dataset, "train", memory=needed, batch_size=batch_size, group_rows=group_rows)


@dataclass(frozen=True)
class Case:
    """A split and a way to read it."""

    parts: tuple[int, ...] = (1000, 0, 1, 999)
    group_rows: int = 100
    batch_size: int = 64
    memory: int = 30_000
    seed: int = 3
    epoch: int = 2
    position: float = field(default=0.5)

    @property
    def rows(self) -> int:
        return sum(self.parts)

    def loader(self, make: Make) -> StreamLoader:
        return open_stream(
            make(*self.parts, group_rows=self.group_rows),
            memory=self.memory,
            batch_size=self.batch_size,
            group_rows=self.group_rows,
        )

    def epoch_of(self, loader: StreamLoader, *, first: int = 0) -> list[Batch]:
        return list(loader.shuffled(seed=self.seed, epoch=self.epoch, first=first))


cases = st.builds(
    Case,
    parts=st.lists(st.integers(0, 70), min_size=1, max_size=5).map(tuple),
    group_rows=st.integers(5, 40),
    batch_size=st.integers(1, 150),
    memory=st.integers(0, 12_000),
    seed=st.integers(0, 2**63),
    epoch=st.integers(0, 1000),
    position=st.floats(0, 1),
)

any_case = given(case=cases)
few = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def numbers(batches: list[Batch]) -> list[int]:
    """The numbers of the rows of batches, whose other columns must be those of the same rows."""
    for batch in batches:
        row = batch.ids[:, 0]
        assert torch.equal(batch.labels, (row % 2).to(torch.int8))
        assert torch.equal(batch.ids[:, 1], row % 3)
        assert torch.equal(batch.dense[:, 0], row.float() / 4)
    return [int(row) for batch in batches for row in batch.ids[:, 0]]


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == THREAD_NAME]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert threads() == []


@few
@any_case
def test_an_epoch_has_each_row_once_in_batches_of_the_size_that_was_asked_for(make: Make, case: Case) -> None:
    loader = case.loader(make)

    batches = case.epoch_of(loader)

    assert sorted(numbers(batches)) == list(range(case.rows))
    assert len(batches) == len(loader) == -(-case.rows // case.batch_size)
    assert all(len(batch) == case.batch_size for batch in batches[:-1])
    assert all((b.dense.dtype, b.ids.dtype) == (torch.float32, torch.int32) for b in batches)


@few
@any_case
def test_an_epoch_taken_up_at_a_batch_goes_on_as_the_whole_one_does(make: Make, case: Case) -> None:
    loader = case.loader(make)
    first = round(case.position * len(loader))

    tail = case.epoch_of(loader, first=first)

    whole = case.epoch_of(loader)
    assert [len(batch) for batch in tail] == [len(batch) for batch in whole[first:]]
    assert numbers(tail) == numbers(whole[first:])


@few
@any_case
def test_batches_in_order_are_the_rows_of_the_parts(make: Make, case: Case) -> None:
    assert numbers(list(case.loader(make))) == list(range(case.rows))


@few
@any_case
def test_the_order_follows_seed_epoch_and_the_name_of_the_order_alone(make: Make, case: Case) -> None:
    loader = case.loader(make)
    torch.manual_seed(case.epoch)
    smaller = Case(**{**vars(case), "memory": case.memory // 2}).loader(make)

    assert numbers(case.epoch_of(case.loader(make))) == numbers(case.epoch_of(loader))
    if smaller.order == loader.order:
        assert numbers(case.epoch_of(smaller)) == numbers(case.epoch_of(loader))


@few
@any_case
def test_windows_keep_whole_groups_and_no_more_rows_than_they_may(make: Make, case: Case) -> None:
    reader = SplitReader(make(*case.parts), "train", group_rows=case.group_rows)
    rows = case.group_rows * (1 + case.memory % 5)

    windows = epoch_windows(reader.groups, rows=rows, seed=case.seed, epoch=case.epoch)

    assert [window.number for window in windows] == list(range(len(windows)))
    assert all(0 < window.rows <= rows for window in windows)
    members = list(chain.from_iterable(window.groups for window in windows))
    assert sorted(members, key=reader.groups.index) == list(reader.groups)
    # no two small ones in a row
    assert all(one.rows + other.rows > rows / 2 for one, other in pairwise(windows))


def test_epochs_and_seeds_differ(make: Make) -> None:
    loader = Case().loader(make)

    def order(seed: int, epoch: int) -> list[int]:
        return numbers(list(loader.shuffled(seed=seed, epoch=epoch)))

    orders = [order(1, 1), order(1, 2), order(2, 1), list(range(loader.rows))]

    assert all(one != other for one in orders for other in orders if one is not other)


def test_with_room_for_the_split_an_epoch_mixes_all_of_it(make: Make) -> None:
    case = Case(parts=(1000,), memory=1_000_000)

    order = torch.tensor(numbers(case.epoch_of(case.loader(make))))

    for quarter in torch.split(order, 250):
        assert torch.histc(quarter.float(), bins=4, min=0, max=999).min() > 35  # 62.5 each on average


def test_rows_of_a_small_window_are_of_its_groups_alone(make: Make) -> None:
    case = Case(parts=(1000,), batch_size=100, memory=0)

    groups_of_batches = [
        {row // 100 for row in numbers([batch])} for batch in case.epoch_of(case.loader(make))
    ]

    assert sorted(chain.from_iterable(groups_of_batches)) == list(range(10))


def test_windows_before_the_first_batch_are_not_read(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(parts=(1000,), batch_size=100, memory=0)
    loader = case.loader(make)
    read = SplitReader.read
    groups: list[int] = []

    def noted(self: SplitReader, group: RowGroup) -> Batch:
        groups.append(group.first)
        return read(self, group)

    monkeypatch.setattr(SplitReader, "read", noted)

    case.epoch_of(loader, first=7)

    assert len(groups) == 3


def test_a_slice_of_a_part_decodes_its_row_group_alone(make: Make) -> None:
    dataset = make(300, group_rows=100)
    part = dataset.path / "train" / "part-00000.parquet"
    damaged = bytearray(part.read_bytes())
    damaged[4:40] = bytes(36)  # in the pages of the first row group
    part.write_bytes(damaged)
    reader = SplitReader(dataset, "train", group_rows=100)

    assert numbers([reader.read(reader.groups[1]), reader.read(reader.groups[2])]) == list(range(100, 300))
    with pytest.raises(DatasetError, match=r"part-00000.parquet, split train, rows from 0: damaged"):
        reader.read(reader.groups[0])


def test_parts_with_other_row_groups_than_was_thought_are_read_too(make: Make) -> None:
    dataset = make(250, 130, group_rows=70)

    loader = StreamLoader(dataset, "train", batch_size=64, memory=100_000, group_rows=100)

    assert numbers(list(loader)) == list(range(380))


def test_a_split_without_dense_columns(make: Make) -> None:
    loader = StreamLoader(make(500, n_dense=0), "train", batch_size=64, memory=1_000_000)

    batches = list(loader.shuffled(seed=1, epoch=1))

    assert sorted(torch.cat([batch.ids[:, 0] for batch in batches]).tolist()) == list(range(500))
    assert batches[0].dense.shape == (64, 0)


def test_dense_values_in_half_the_memory(make: Make) -> None:
    dataset = make(500, n_dense=3)
    float32, bfloat16 = (
        StreamLoader(dataset, "train", batch_size=64, memory=1_000_000, dense_dtype=dtype)
        for dtype in (torch.float32, torch.bfloat16)
    )

    for exact, rounded in zip(
        float32.shuffled(seed=1, epoch=1), bfloat16.shuffled(seed=1, epoch=1), strict=True
    ):
        assert torch.equal(exact.ids, rounded.ids)
        assert torch.equal(exact.dense.bfloat16(), rounded.dense)
    assert bfloat16.memory < float32.memory


def test_batches_stay_as_they_were_while_later_ones_are_made(make: Make) -> None:
    case = Case(memory=0)
    loader = case.loader(make)
    kept: list[Batch] = []
    seen: list[list[int]] = []

    for batch in loader.shuffled(seed=1, epoch=1):
        kept.append(batch)
        seen.append(numbers([batch]))

    assert [numbers([batch]) for batch in kept] == seen


def test_a_stream_and_a_split_on_the_device_hold_the_same_rows(small_dataset: Path) -> None:
    dataset = Dataset.open(small_dataset)
    stream = StreamLoader(dataset, "train", batch_size=77, memory=10**8, group_rows=256)

    pairs = list(zip(stream, DeviceLoader(dataset, "train", batch_size=77), strict=True))

    assert all(torch.equal(*same) for s, d in pairs for same in zip(s.tensors, d.tensors, strict=True))


def leave_by_break(batches: Iterator[Batch]) -> None:
    for _ in batches:
        break


def leave_by_error(batches: Iterator[Batch]) -> None:
    def use() -> None:
        for batch in batches:
            len(batch) // 0

    with pytest.raises(ZeroDivisionError):
        use()


def leave_by_close(batches: Iterator[Batch]) -> None:
    next(batches)
    batches.close()  # type: ignore[attr-defined]


def leave_before_the_first(batches: Iterator[Batch]) -> None:
    del batches


@pytest.mark.parametrize("leave", [leave_by_break, leave_by_error, leave_by_close, leave_before_the_first])
@pytest.mark.parametrize("memory", [0, 1_000_000])
def test_an_iterator_that_is_left_early_leaves_no_thread(
    make: Make, leave: Callable[[Iterator[Batch]], None], memory: int
) -> None:
    case = Case(memory=memory)
    loader = case.loader(make)

    leave(loader.shuffled(seed=1, epoch=1))
    leave(iter(loader))

    assert threads() == []


def test_two_iterators_do_not_disturb_each_other(make: Make) -> None:
    case = Case()
    loader = case.loader(make)
    alone = numbers(case.epoch_of(loader)), numbers(list(loader))

    shuffled = loader.shuffled(seed=case.seed, epoch=case.epoch)
    pairs = list(zip(shuffled, loader, strict=True))

    assert (numbers([one for one, _ in pairs]), numbers([other for _, other in pairs])) == alone


def at_row_150(column: str, value: float, dtype: pl.DataType) -> pl.Expr:
    return pl.when(pl.col("C1") == 150).then(value).otherwise(pl.col(column)).cast(dtype).alias(column)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (at_row_150("label", 2, pl.Int8()), "labels other than 0 and 1"),
        (at_row_150("label", -1, pl.Int8()), "labels other than 0 and 1"),
        (at_row_150("I0", float("nan"), pl.Float32()), "dense values that are not finite"),
        (at_row_150("C2", 3, pl.Int32()), "C2: id 3 in row 20 "),
        (at_row_150("C2", -1, pl.Int32()), "C2: id -1 in row 20 "),
    ],
)
def test_a_value_out_of_its_range_is_refused_with_its_part_and_place(
    make: Make, change: pl.Expr, message: str
) -> None:
    loader = StreamLoader(make(90, 100, change=change), "train", batch_size=8, memory=10**6, group_rows=40)

    batches = iter(loader)
    assert numbers(list(islice(batches, 16))) == list(range(128))  # what came before it
    with pytest.raises(DatasetError, match=rf"part-00001.parquet, split train, rows from 40: .*{message}"):
        next(batches)


def test_a_part_that_went_missing(make: Make) -> None:
    dataset = make(90, 100)
    loader = StreamLoader(dataset, "train", batch_size=8, memory=10**6)
    (dataset.path / "train" / "part-00001.parquet").unlink()

    with pytest.raises(DatasetError, match=r"part-00001.parquet, split train, rows from 0: damaged"):
        list(loader)


def test_a_part_with_fewer_rows_than_the_manifest_says(make: Make) -> None:
    dataset = make(90, 100)
    loader = StreamLoader(dataset, "train", batch_size=8, memory=10**6)
    part = dataset.path / "train" / "part-00001.parquet"
    pl.read_parquet(part).head(60).write_parquet(part)

    with pytest.raises(DatasetError, match=r"part-00001.parquet, .*: 60 rows of 100: prepare"):
        list(loader)


def test_a_split_that_is_not_there(make: Make) -> None:
    with pytest.raises(DatasetError, match="no holdout split"):
        StreamLoader(make(10), "holdout", batch_size=8, memory=10**6)


@pytest.mark.parametrize("first", [-1, 33])
def test_an_epoch_cannot_begin_beyond_its_end(make: Make, first: int) -> None:
    loader = Case().loader(make)  # 32 batches

    assert list(loader.shuffled(seed=1, epoch=1, first=32)) == []
    with pytest.raises(ConfigError, match=f"32 batches cannot begin with number {first}"):
        loader.shuffled(seed=1, epoch=1, first=first)


def test_memory_for_less_than_a_row_group_and_a_batch_is_refused_with_both_figures(make: Make) -> None:
    with pytest.raises(
        ConfigError, match=r"takes [\d,]{6,} bytes at a batch size of 64, and may have 1,000:"
    ):
        StreamLoader(make(1000, group_rows=100), "train", batch_size=64, memory=1000, group_rows=100)


def test_more_memory_gives_larger_windows_and_never_more_than_was_given(make: Make) -> None:
    dataset = make(1000, group_rows=100)
    least = open_stream(dataset, memory=0, batch_size=64, group_rows=100).memory

    loaders = [
        open_stream(dataset, memory=memory, batch_size=64, group_rows=100)
        for memory in range(least, 6 * least, least // 8)
    ]

    assert all(loader.memory <= least + least // 8 * k for k, loader in enumerate(loaders))
    assert {loader.order for loader in loaders} == {f"windows-{100 * k}-100" for k in range(1, 11)}


def test_the_line_for_the_log(make: Make) -> None:
    loader = StreamLoader(make(1000, group_rows=100), "train", batch_size=64, memory=10**9, group_rows=100)

    assert re.fullmatch(
        r"loader: stream, 1,000 rows, window of 10 row groups \(0 MB\), 0 MB in all", loader.describe()
    )
    assert loader.kind == "stream"


def test_the_process_grows_by_no_more_than_the_memory_that_it_may_have(tmp_path: Path) -> None:
    program = tmp_path / "grow.py"
    program.write_text(GROWTH)
    two_threads = os.environ | {"POLARS_MAX_THREADS": "2"}  # its allocator keeps some memory for each

    answer = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, check=True, env=two_threads
    )

    grown, bound, split = map(int, answer.stdout.split())
    assert grown <= bound < split / 2


GROWTH = """
import numpy as np, polars as pl, torch
from pathlib import Path
from types import SimpleNamespace
from stampede.training.stream import StreamLoader

torch.set_num_threads(1)
ROWS, GROUP, FIELDS, DENSE = 800_000, 1 << 15, 26, 13
folder = Path(__file__).parent
dense, fields = [f"I{k}" for k in range(DENSE)], [f"C{k}" for k in range(FIELDS)]
random = np.random.default_rng(0)
frame = pl.DataFrame(
    {"label": np.zeros(ROWS, np.int8)}
    | {name: random.random(ROWS, np.float32) for name in dense}
    | {name: random.integers(0, 1000, ROWS, np.int32) for name in fields}
)
for rows, name in ((frame, "train"), (frame.head(2 * GROUP), "warm")):
    rows.write_parquet(folder / f"{name}.parquet", row_group_size=GROUP, compression="lz4")
bytes_of_split = frame.estimated_size()
del frame, rows

def dataset(name, rows):
    part = SimpleNamespace(path=f"{name}.parquet", rows=rows)
    return SimpleNamespace(
        path=folder, scan=lambda split: None, dense_columns=dense, fields=fields,
        sizes=dict.fromkeys(fields, 1000),
        manifest=SimpleNamespace(splits={"train": SimpleNamespace(files=[part])}),
    )

def status(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(key))

def open_loader(name, rows, memory):
    return StreamLoader(
        dataset(name, rows), "train", batch_size=10_000, memory=memory, group_rows=GROUP
    )

for _ in open_loader("warm", 2 * GROUP, 60_000_000).shuffled(seed=1, epoch=1):
    pass
loader = open_loader("train", ROWS, 60_000_000)
Path("/proc/self/clear_refs").write_text("5")
before = status("VmRSS")
for epoch in range(2):
    for batch in loader.shuffled(seed=1, epoch=epoch):
        pass
print(status("VmHWM") - before, loader.memory, bytes_of_split)
"""


def test_a_buffer_is_filled_ahead_and_left_alone_while_it_is_used() -> None:
    filled_for: list[int] = []

    def fill(job: int, buffer: list[int]) -> Iterator[None]:
        buffer[:] = [job] * 3
        filled_for.append(job)
        yield

    for job, buffer in filled(range(50), [[0], [0]], fill):
        assert buffer == [job] * 3
        assert filled_for[-1] <= job + 1

    assert filled_for == list(range(50))


def test_an_error_of_the_thread_reaches_the_consumer_as_it_is() -> None:
    error = RuntimeError("this one")

    def fill(job: int, buffer: list[int]) -> Iterator[None]:
        if job == 2:
            raise error
        yield

    jobs: list[int] = []
    with pytest.raises(RuntimeError) as caught:
        jobs.extend(job for job, _ in filled(range(5), [[0], [0]], fill))

    assert caught.value is error
    assert threads() == []


def test_a_thread_in_the_middle_of_a_job_stops_after_its_step() -> None:
    steps: list[int] = []
    second = threading.Event()

    def fill(job: int, buffer: list[int]) -> Iterator[None]:
        for step in range(1000):
            if job == 1:
                steps.append(step)
                second.set()
                threading.Event().wait(0.001)
            yield

    with closing(filled(range(2), [[0], [0]], fill)) as buffers:
        next(buffers)
        second.wait()

    assert 1 <= len(steps) < 1000
    assert threads() == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("batch_size", [1, 64, 5000])
def test_on_a_gpu_the_batches_are_those_of_the_cpu(make: Make, batch_size: int) -> None:
    case = Case(batch_size=batch_size)
    on_cpu = case.loader(make)
    on_gpu = StreamLoader(
        on_cpu._reader.dataset,
        "train",
        batch_size=batch_size,
        memory=on_cpu.memory,
        group_rows=100,
        device="cuda",
    )

    batches = case.epoch_of(on_gpu)

    assert all(batch.ids.device.type == "cuda" for batch in batches)
    assert numbers([batch.to(torch.device("cpu")) for batch in batches]) == numbers(case.epoch_of(on_cpu))
    assert numbers([batch.to(torch.device("cpu")) for batch in on_gpu]) == list(range(case.rows))
