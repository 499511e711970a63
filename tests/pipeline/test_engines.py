"""Every engine makes the same dataset of the same log: each case runs on all of them."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from tests.pipeline.gpu_stand_in import GpuPlansOnCpu
from tests.pipeline.logs import (
    AVAZU,
    CRITEO,
    DATA,
    EVERY_ROW,
    SMALL,
    assert_same_dataset,
    good_rows,
    parts,
    refusal,
    write,
)

from stampede import ConfigError, DeviceError
from stampede.pipeline import (
    Dataset,
    DenseMode,
    PrepareOptions,
    Schema,
    SplitRule,
    engine_nvtabular,
    engine_polars_gpu,
    nvtabular_ids,
    prepare,
)
from stampede.pipeline.engine import ENGINES, EngineName
from stampede.pipeline.engine_nvtabular import NVTabularEngine
from stampede.pipeline.spool import ROW

if TYPE_CHECKING:
    from tests.conftest import Command

# Engines compute logarithms and quotients with other libraries; everything else is the same to the bit.
FLOAT32_LAST_PLACES = 1

needs_nvtabular = pytest.mark.skipif(
    NVTabularEngine.of_environment().python is None,
    reason="NVTabular's environment is not there: make env-nvtabular",
)

OTHERS = [
    pytest.param(name, marks=needs_nvtabular if name == "nvtabular" else ())
    for name in ENGINES
    if name != "polars"
]

HALVES = SplitRule(rule="sequential", valid_fraction=0.25, test_fraction=0.25)
TIMED = Schema(name="timed", label="y", dense=("n", "m"), categorical=("a", "b"), time="t")

TEXTS = [
    "05e00000", "00123456", "623e1100", "1e5", "100000.0", "100000", "-0", "0", "00", "0x10", "True", "true",
    "nan", "NaN", "NA", "N/A", "<NA>", "None", "null", "NULL", "inf", "18446744073709551616", " ", "a ", "a",
    "A", '"', '"a"', 'a"b', "'a'", "\\N", "\\", "a,b", "é", "e\u0301", "漢字", "😀", "\ufeff", "\u00a0",
    "\u2028", "\x00", "a\x00", "a\x00b", "a\ue000", "a\ue0001", "a\ue0000", "\x1f", "\x85", "x" * 300, "",
]  # fmt: skip
NUMBERS = [
    "", "", "0", "-0", "-0.0", "1", "-1", "2", "3", "0.1", "-0.5", "1e-320", "-1e-310", "1e-45", "1.5e-30",
    "16777217", "9223372036854775808", "3.4e38", "-3.4e38", "1e-400", "7",
]  # fmt: skip


def hostile_rows(count: int = 160, *, seed: int = 0) -> list[str]:
    """Rows of TIMED: texts that look like numbers, quotes, unicode, and numbers at the ends of float32."""
    draw = random.Random(seed)
    rows = []
    for row in range(count):
        texts = [draw.choice(TEXTS[: draw.choice((5, 20, len(TEXTS)))]) for _ in "ab"]
        numbers = [draw.choice(NUMBERS), str(draw.gauss(0, 100)) if row % 4 else ""]
        rows.append("\t".join([str(row % 3 // 2), *numbers, *texts, f"141021{row // 10:02}"]))
    return rows


@dataclass(frozen=True)
class Case:
    """A log and what is wanted of it."""

    schema: Schema
    log: Path | list[str]
    options: PrepareOptions


def narrow(schema: Schema) -> Schema:
    """Leave out half of the columns: NVTabular takes its time for each."""
    dropped = (*schema.dense[1::2], *schema.categorical[1::2])
    return schema.model_copy(
        update={
            "dense": schema.dense[::2],
            "categorical": schema.categorical[::2],
            "drop": (*schema.drop, *dropped),
        }
    )


def log_bucketed(**options: object) -> PrepareOptions:
    return PrepareOptions(split=HALVES, dense_mode=DenseMode.LOG_BUCKET, **options)  # type: ignore[arg-type]


CASES = {
    "real criteo rows": Case(
        narrow(CRITEO), DATA / "criteo_excerpt.tsv", PrepareOptions(dense_null_flag=True)
    ),
    "real avazu rows by time": Case(
        narrow(AVAZU), DATA / "avazu_excerpt.csv", PrepareOptions(split=SplitRule(rule="time"), min_count=3)
    ),
    "log": Case(
        TIMED,
        hostile_rows(),
        PrepareOptions(min_count=1, dense_null_flag=True, split=SplitRule(rule="random", seed=7)),
    ),
    "minmax, and values outside the fitted range": Case(
        TIMED, hostile_rows(), PrepareOptions(dense_mode=DenseMode.MINMAX, split=HALVES)
    ),
    "standard": Case(
        TIMED, hostile_rows(), PrepareOptions(dense_mode=DenseMode.STANDARD, min_count=3, max_size=4)
    ),
    "none, without counts": Case(
        TIMED, hostile_rows(), PrepareOptions(dense_mode=DenseMode.NONE, counts=False, dense_null_flag=True)
    ),
    "log-bucket": Case(TIMED, hostile_rows(), log_bucketed()),
    "hash buckets": Case(TIMED, hostile_rows(), PrepareOptions(split=HALVES, hash_buckets=5, min_count=3)),
    "hash buckets after a size limit": Case(
        TIMED, hostile_rows(), log_bucketed(hash_buckets=3, max_size=7, min_count=1)
    ),
    "a size limit that falls among ties": Case(
        SMALL,
        [f"1\t1\t2\ta{i * 7 % 20:02}\tb{i % 2}" for i in range(40)],
        PrepareOptions(split=EVERY_ROW, min_count=1, max_size=5),
    ),
    "crosses, count features and targets": Case(
        TIMED,
        hostile_rows(),
        PrepareOptions(
            min_count=2,
            hash_buckets=3,
            crosses=(("a", "hour_of_day"),),
            count_features=True,
            target_encode=("a", "a_x_hour_of_day"),
            folds=3,
        ),
    ),
    "targets, fitted on all rows, bucketed numbers": Case(
        TIMED,
        hostile_rows(),
        log_bucketed(fit_on="all", target_encode=("n",), count_features=True, counts=False),
    ),
    "fitted on all rows": Case(
        TIMED,
        hostile_rows(),
        PrepareOptions(fit_on="all", split=HALVES, dense_mode=DenseMode.STANDARD, dense_null_flag=True),
    ),
    "columns that are empty or constant where they are fitted": Case(
        SMALL,
        [*["1\t\t5\t\tb"] * 6, *["0\t3\t6\ta\tc"] * 6],
        PrepareOptions(split=HALVES, dense_mode=DenseMode.MINMAX, dense_null_flag=True),
    ),
    "a deviation of nothing": Case(
        SMALL,
        [*["1\t2\t1e-320\ta\t"] * 6, *["0\t3\t0\t\t"] * 6],
        PrepareOptions(split=HALVES, dense_mode=DenseMode.STANDARD),
    ),
    "numbers alone": Case(
        Schema(name="numbers", label="y", dense=("n",)),
        ["1\t2", "0\t", "1\t-7"],
        PrepareOptions(split=EVERY_ROW),
    ),
    "texts alone, in columns with odd names": Case(
        Schema(name="texts", label="y", categorical=("é a", "index", "size", "y_count")),
        ["1\tu\tv\tw\tx", "0\t\tv\tw\tx", "1\tu\tv\t\tx"],
        PrepareOptions(split=EVERY_ROW),
    ),
}  # fmt: skip


def workers_in(folder: Path) -> list[Path]:
    """The processes that run NVTabular in a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (process / "cmdline").read_bytes()
            if str(folder).encode() in command and b"nvtabular_worker.py" in command:
                found.append(process)
    return found


def prepared(case: Case, engine: EngineName, folder: Path) -> Dataset:
    log = case.log if isinstance(case.log, Path) else write(folder / "log.tsv", case.log)
    return prepare(case.schema, [log], folder / engine, options=case.options, engine=engine)


@pytest.mark.parametrize("engine", OTHERS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_engine_makes_the_same_dataset(
    case: Case, engine: EngineName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_polars_gpu, "PolarsGpuEngine", GpuPlansOnCpu)
    expected = prepared(case, "polars", tmp_path)

    dataset = prepared(case, engine, tmp_path)

    assert_same_dataset(dataset, expected, maxulp=FLOAT32_LAST_PLACES)


@needs_nvtabular
class TestNVTabular:
    @pytest.fixture
    def partitions(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Cut what is handed over into partitions of 32 rows."""
        monkeypatch.setattr(engine_nvtabular, "HANDED_ROWS_PER_GROUP", 32)
        monkeypatch.setenv("STAMPEDE_NVTABULAR_PART_SIZE", "1B")

    @pytest.mark.parametrize("workers", ["1", "2"])
    def test_partitions_and_dask_workers_change_nothing(
        self, workers: str, partitions: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("STAMPEDE_NVTABULAR_WORKERS", workers)
        # partition by partition a column is empty, and no partition has every value
        rows = [f"{i % 2}\t{i}\t\t{'' if i // 32 % 2 else i % 9}\tb{i // 7}" for i in range(400)]
        case = Case(SMALL, rows, PrepareOptions(split=HALVES, dense_mode=DenseMode.STANDARD))

        dataset = prepared(case, "nvtabular", tmp_path)

        assert_same_dataset(dataset, prepared(case, "polars", tmp_path), maxulp=FLOAT32_LAST_PLACES)

    def test_the_saved_workflow_gives_the_rows_of_the_dataset(self, tmp_path: Path) -> None:
        options = PrepareOptions(split=HALVES, max_size=3)
        dataset = prepared(Case(SMALL, good_rows(60), options), "nvtabular", tmp_path)
        assert {path.name for path in dataset.path.iterdir()} == {
            "manifest.json", "train", "valid", "test", "vocab", "nvtabular_workflow"
        }  # fmt: skip
        test = parts(dataset)["test"]
        raw = pl.DataFrame(
            [row.split("\t") for row in good_rows(60)][45:], schema=SMALL.columns, orient="row"
        ).with_columns(pl.col("n", "m").cast(pl.Float64), label=pl.col("y").cast(pl.Int8))
        raw.write_parquet(tmp_path / "raw.parquet")
        code = (
            "import sys, warnings; warnings.simplefilter('ignore')\n"
            "import nvtabular, pandas\n"
            "workflow = nvtabular.Workflow.load(sys.argv[1])\n"
            "workflow.transform(pandas.read_parquet(sys.argv[2])).to_parquet(sys.argv[3])"
        )
        arguments = [dataset.path / "nvtabular_workflow", tmp_path / "raw.parquet", tmp_path / "out.parquet"]

        python = NVTabularEngine.of_environment().python
        subprocess.run([str(python), "-c", code, *arguments], check=True, cwd=tmp_path, capture_output=True)

        answer = pl.read_parquet(tmp_path / "out.parquet").select(
            pl.col(name).cast(dtype) for name, dtype in test.schema.items()
        )
        assert_frame_equal(answer, test, check_exact=True)

    def test_what_fails_there_is_one_line_here(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("STAMPEDE_NVTABULAR_PART_SIZE", "much")
        log = write(tmp_path / "log.tsv", good_rows(40))

        with pytest.raises(DeviceError, match=r"^--engine nvtabular failed: KeyError: 'much'"):
            prepare(SMALL, [log], tmp_path / "out", engine="nvtabular")

        assert [path.name for path in tmp_path.iterdir()] == ["log.tsv"]

    def test_its_process_ends_when_preparation_is_killed(self, tmp_path: Path) -> None:
        log = write(tmp_path / "log.tsv", good_rows(40))
        code = (
            "from stampede.pipeline import Schema, prepare\n"
            "schema = Schema(name='small', label='y', dense=('n', 'm'), categorical=('a', 'b'))\n"
            f"prepare(schema, [{str(log)!r}], {str(tmp_path / 'out')!r}, engine='nvtabular')"
        )
        with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL) as preparation:
            while not (workers := workers_in(tmp_path)):
                assert preparation.poll() is None
                time.sleep(0.01)
            preparation.kill()

        for _ in range(1000):
            if not any(worker.exists() for worker in workers):
                break
            time.sleep(0.01)
        assert not [worker for worker in workers if worker.exists()]

    def test_a_column_that_its_frames_need_themselves_is_refused(self, tmp_path: Path) -> None:
        schema = Schema(name="taken", label="y", categorical=("order",))
        log = write(tmp_path / "log.tsv", ["1\ta", "0\tb"])

        with pytest.raises(ConfigError, match="cannot encode a column named order"):
            prepare(
                schema, [log], tmp_path / "out", options=PrepareOptions(split=EVERY_ROW), engine="nvtabular"
            )


class TestTranslation:
    """What NVTabular hands back, made up here: no environment is needed."""

    STORED = pl.Series("a", ["b", "a", "c"])  # its ids 3, 4, 5
    IDS = (5, 4, 5, 1, 3, 2, 4, 2, 3, 1, 5)  # c three times, a and b twice, two rare, two empty

    def test_counts_come_from_the_rows_whatever_is_stored(self, tmp_path: Path) -> None:
        categories = tmp_path / "categories"
        categories.mkdir()
        wrong = [3, 1, 2]  # each is one off, and their order is another
        pl.DataFrame({"a": self.STORED, "a_size": wrong}).write_parquet(categories / "unique.a.parquet")

        stored = {"a": nvtabular_ids.stored_values(tmp_path, "a")}
        ((_, vocabulary),) = nvtabular_ids.recount(pl.LazyFrame({"a": self.IDS}), stored, PrepareOptions())

        assert vocabulary.values.to_list() == ["c", "a", "b"]
        assert vocabulary.counts.tolist() == [0, 2, 2, 3, 2, 2]

    def test_ids_are_renumbered_by_count_and_then_by_the_bytes_of_the_value(self) -> None:
        stored = {"a": self.STORED}
        encoded = pl.LazyFrame({"a": self.IDS})
        vocabularies = dict(nvtabular_ids.recount(encoded, stored, PrepareOptions()))

        numbers = pl.LazyFrame({ROW: range(len(self.IDS))})
        rows = nvtabular_ids.translate(encoded, numbers, vocabularies, stored).collect()

        assert rows["a"].to_list() == [3, 4, 3, 1, 5, 2, 4, 2, 5, 1, 3]
        assert rows["a"].dtype == pl.Int32
        assert rows[ROW].to_list() == list(range(len(self.IDS)))
        assert np.bincount(rows["a"]).tolist() == vocabularies["a"].counts.tolist()


class TestChoice:
    def test_without_its_environment_one_line_says_how_to_make_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = write(tmp_path / "log.tsv", good_rows(40))
        monkeypatch.setattr(engine_nvtabular, "CHECKOUT", tmp_path)
        monkeypatch.delenv("STAMPEDE_NVTABULAR_PYTHON", raising=False)
        with pytest.raises(
            DeviceError, match="there is no environment with NVTabular: run 'make env-nvtabular'"
        ):
            prepare(SMALL, [log], tmp_path / "out", engine="nvtabular")

        for python, reason in (
            (tmp_path / "none", "No such file"),
            (Path(sys.executable), "No module named"),
        ):
            monkeypatch.setenv("STAMPEDE_NVTABULAR_PYTHON", str(python))
            with pytest.raises(DeviceError, match=f"{python}.*{reason}.*make env-nvtabular"):
                prepare(SMALL, [log], tmp_path / "out", engine="nvtabular")

        assert [path.name for path in tmp_path.iterdir()] == ["log.tsv"]

    def test_the_number_of_workers_must_be_one(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("STAMPEDE_NVTABULAR_WORKERS", "all")

        with pytest.raises(ConfigError, match=r"^STAMPEDE_NVTABULAR_WORKERS=all: "):
            prepare(SMALL, [tmp_path / "log.tsv"], tmp_path / "out", engine="nvtabular")

    def test_an_engine_that_is_none_names_those_that_are(self, tmp_path: Path) -> None:
        error = refusal(tmp_path, [], error=ConfigError, engine="spark")

        assert str(error) == "--engine spark: choose polars or polars-gpu or nvtabular"

    def test_it_is_a_flag_of_prepare(self, stampede: Command, tmp_path: Path) -> None:
        log = write(tmp_path / "log.tsv", good_rows(40, schema=SMALL))
        schema = tmp_path / "small.toml"
        schema.write_text('label = "y"\ndense = ["n", "m"]\ncategorical = ["a", "b"]\n')

        answer = stampede("prepare", schema, log, "--out", tmp_path / "out", "--engine", "polars", "--json")
        wrong = stampede("prepare", schema, log, "--out", tmp_path / "out", "--engine", "spark")
        told = stampede("prepare", "--help")

        assert answer.code == 0
        assert wrong.code == 2
        assert "nvtabular" in told.out
