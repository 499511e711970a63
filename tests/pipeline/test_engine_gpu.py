"""The engine ``polars-gpu`` where there is no GPU: its plans translate, and without a GPU it says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import polars as pl
import pytest
from tests.pipeline.gpu_stand_in import GpuPlansOnCpu
from tests.pipeline.logs import (
    CRITEO,
    DATA,
    ROOT,
    SMALL,
    assert_same_dataset,
    good_rows,
    memory_folder,
    parts,
    write,
)

from stampede import ConfigError, DeviceError
from stampede.pipeline import PrepareOptions, SplitRule, engine_polars_gpu, prepare
from stampede.pipeline.engine import GpuOptions, Job, engine_named
from stampede.pipeline.engine_polars_gpu import Backend, PolarsGpuEngine, Runner

if TYPE_CHECKING:
    from tests.conftest import Command

GPU_PYTHON = ROOT / ".venv-gpu" / "bin" / "python"
TRANSLATION = ROOT / "tests" / "pipeline" / "gpu_translation.py"

NOT_INSTALLED = (
    "--engine polars-gpu: cudf-polars is not installed: pip install -c constraints-gpu.txt '.[gpu]'"
)
GB = 10**9

needs_gpu_environment = pytest.mark.skipif(
    not GPU_PYTHON.exists(), reason="cudf-polars's environment is not there: make env-gpu"
)


def in_gpu_environment(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the Python of that environment on this checkout."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [str(GPU_PYTHON), *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def answer() -> Any:
    """What cudf-polars says of every plan that the engine runs."""
    with memory_folder() as folder:
        asked = in_gpu_environment(TRANSLATION, folder)
    assert asked.returncode == 0, asked.stderr
    return json.loads(asked.stdout)


@needs_gpu_environment
class TestTranslation:
    def test_every_plan_runs_on_a_gpu_whole_or_in_chunks_or_on_two(self, answer: Any) -> None:
        assert answer["faults"] == []

    def test_of_each_case_the_counts_the_statistics_and_every_split_were_asked(self, answer: Any) -> None:
        plans = answer["plans"]

        assert len(plans) == 24
        assert plans["criteo, defaults"] == 26 + 1 + 3  # fields, bounds, splits
        assert plans["criteo, standard"] == 26 + 3 + 3  # with means and deviations
        assert plans["criteo, hash buckets"] == 26 + 26 + 1 + 3  # with the values that share ids
        assert plans["criteo, without valid and test"] == 26 + 1 + 1
        assert plans["avazu, by hour"] == 23 + 2

    def test_a_plan_with_python_in_it_and_one_that_takes_all_rows_at_once_do_not_pass(
        self, answer: Any
    ) -> None:
        assert answer["must fail"]["python"] == [
            "in-memory: NotImplementedError: anonymousfunction",
            "streaming: NotImplementedError: anonymousfunction",
        ]
        assert answer["must fail"]["row numbers"] == [
            f"streaming, {gpus} GPUs: row_index is not supported for multiple partitions." for gpus in (1, 2)
        ]

    def test_such_a_plan_is_an_error_unless_it_is_allowed_which_is_said_once(self, answer: Any) -> None:
        assert answer["fallback"] == {
            "told": ["--engine polars-gpu: a part of the plan runs on the CPU (anonymousfunction)"],
            "same": [True, True],
            "refused": "--engine polars-gpu: a part of the plan cannot run on the GPU (anonymousfunction): "
            "allow it to run on the CPU with --allow-fallback, or take --engine polars",
        }

    @pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="there is a GPU")
    def test_without_a_driver_it_says_so(self) -> None:
        code = "from stampede.pipeline.engine import engine_named; engine_named('polars-gpu').check()"

        asked = in_gpu_environment("-c", code)

        assert "DeviceError: --engine polars-gpu: no NVIDIA driver (" in asked.stderr.splitlines()[-1]


class TestParts:
    def test_files_of_several_gpus_become_the_parts_of_a_split_in_order(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def sink_in_pieces(rows: pl.LazyFrame, path: Path) -> pl.LazyFrame:
            """Write as two workers do: a folder, a file per chunk, some without a row."""
            frame = rows.collect()
            cuts = [0, 5, 5, 9, frame.height]
            path.mkdir()
            for number, (start, stop) in enumerate(pairwise(cuts)):
                piece = frame.slice(start, stop - start)
                piece.write_parquet(path / f"part.{number // 2}.{number % 2:06d}.parquet")
            return pl.LazyFrame()

        log = write(tmp_path / "log.tsv", good_rows(200))
        expected = prepare(SMALL, [log], tmp_path / "polars")
        monkeypatch.setattr(engine_polars_gpu, "PolarsGpuEngine", GpuPlansOnCpu)
        monkeypatch.setattr(engine_polars_gpu, "parquet_sink", sink_in_pieces)

        dataset = prepare(SMALL, [log], tmp_path / "gpu", engine="polars-gpu")

        files = dataset.manifest.splits["train"].files
        assert [part.path for part in files] == [f"train/part-0000{number}.parquet" for number in range(3)]
        assert [part.rows for part in files] == [5, 4, expected.rows["train"] - 9]
        assert {path.name for path in dataset.path.iterdir()} == {
            "manifest.json", "train", "valid", "test", "vocab",
        }  # fmt: skip
        for split, frame in parts(expected).items():
            assert frame.equals(dataset.scan(split).collect())

    def test_one_gpu_writes_one_file_per_split(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        log = write(tmp_path / "log.tsv", good_rows(200))
        monkeypatch.setattr(engine_polars_gpu, "PolarsGpuEngine", GpuPlansOnCpu)

        dataset = prepare(SMALL, [log], tmp_path / "gpu", engine="polars-gpu")

        assert_same_dataset(dataset, prepare(SMALL, [log], tmp_path / "polars"))
        assert len(dataset.manifest.splits["train"].files) == 1


class TestWithoutOne:
    def test_one_line_says_how_to_get_it_before_anything_is_read(
        self, stampede: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

        answer = stampede(
            "prepare", "criteo", tmp_path / "none.tsv", "--out", tmp_path / "out", "--engine", "polars-gpu"
        )

        assert (answer.code, answer.out, answer.err) == (1, "", f"stampede: {NOT_INSTALLED}\n")
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("driver", "visible", "reason"),
        [
            ({}, None, "no NVIDIA driver (Library Not Found): install one of version 580 or newer, or take"),
            (
                {"gpus": 1, "cuda": 12040},
                None,
                "the NVIDIA driver runs CUDA up to 12.4, and 13.0 is needed: install",
            ),
            ({"gpus": 0}, None, "the NVIDIA driver shows no GPU here"),
            ({"gpus": 2}, "", "CUDA_VISIBLE_DEVICES= hides every GPU: unset it"),
            ({"gpus": 2}, "-1,0", "CUDA_VISIBLE_DEVICES=-1,0 hides every GPU"),
        ],
    )
    def test_what_is_missing_is_said(
        self, driver: dict[str, int], visible: str | None, reason: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pretend_driver(monkeypatch, visible, **driver)

        with pytest.raises(DeviceError) as refused:
            PolarsGpuEngine().check()

        assert str(refused.value).startswith(f"--engine polars-gpu: {reason}")
        assert "\n" not in str(refused.value)

    def test_a_query_is_tried(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pretend_driver(monkeypatch, None, gpus=1)  # of a GPU alone that this Python's polars cannot use

        with pytest.raises(DeviceError, match=r"^--engine polars-gpu: no query runs on the GPU \(.+\): pip "):
            PolarsGpuEngine().check()


class TestOptions:
    @pytest.mark.parametrize("flag", [("--allow-fallback",), ("--gpu-executor", "streaming")])
    def test_another_engine_does_not_take_them(
        self, flag: tuple[str, ...], stampede: Command, tmp_path: Path
    ) -> None:
        answer = stampede("prepare", "criteo", tmp_path / "log.tsv", "--out", tmp_path / "out", *flag)

        assert answer.code == 2
        assert answer.err == (
            "stampede: --engine polars: --gpu-executor and --allow-fallback are options of "
            "--engine polars-gpu\n"
        )
        assert list(tmp_path.iterdir()) == []

    def test_flags_reach_the_engine(
        self, stampede: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        given: list[GpuOptions] = []

        class Recording(GpuPlansOnCpu):
            def runner(self, job: Job) -> AbstractContextManager[Runner]:
                given.append(self.options)
                return nullcontext(Runner("streaming", job.scratch))

        monkeypatch.setattr(engine_polars_gpu, "PolarsGpuEngine", Recording)
        log = DATA / "criteo_excerpt.tsv"
        command = ("prepare", "criteo", log, "--engine", "polars-gpu", "--json", "--out")

        plain = stampede(*command, tmp_path / "plain")
        flagged = stampede(*command, tmp_path / "flagged", "--gpu-executor", "dask", "--allow-fallback")

        assert (plain.code, flagged.code) == (0, 0)
        assert given[0] == GpuOptions()
        assert given[1].executor == "dask"
        assert given[1].on_fallback is not None

    def test_an_executor_that_is_none_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"^--gpu-executor cpu: choose auto or in-memory or streaming"):
            GpuOptions(executor="cpu")  # type: ignore[arg-type]

    def test_the_engine_of_polars_may_not_fall_back(self) -> None:
        in_memory, streaming = (engine_polars_gpu.gpu_engine(way) for way in ("in-memory", "streaming"))

        assert in_memory.config == {"executor": "in-memory", "raise_on_fail": True}
        assert streaming.config == {
            "executor": "streaming",
            "executor_options": {"fallback_mode": "raise"},
            "raise_on_fail": True,
        }

    def test_dask_may_not_fall_back_either(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        given: list[dict[str, object]] = []

        def dask_engine(**options: object) -> AbstractContextManager[str]:
            given.append(options)
            return nullcontext("engine")

        monkeypatch.setitem(sys.modules, "cudf_polars", SimpleNamespace())
        monkeypatch.setitem(sys.modules, "cudf_polars.engine", SimpleNamespace())
        monkeypatch.setitem(sys.modules, "cudf_polars.engine.dask", SimpleNamespace(DaskEngine=dask_engine))
        pretend_driver(monkeypatch, None, gpus=2)

        with PolarsGpuEngine().runner(job_of(tmp_path, rows=10)) as runner:
            assert cast("str", runner.engine) == "engine"

        assert given == [
            {"executor_options": {"fallback_mode": "raise"}, "engine_options": {"raise_on_fail": True}}
        ]


class TestChoice:
    @pytest.mark.parametrize(
        ("rows", "gpus", "way"),
        [
            (1_000_000, ["0"], "in-memory"),
            (10_000_000, ["0"], "streaming"),
            (3_000_000_000, ["0"], "streaming"),
            (1_000_000, ["0", "1"], "dask"),
        ],
    )
    def test_of_one_gpu_what_fits_and_of_several_dask(
        self, rows: int, gpus: list[str], way: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(engine_polars_gpu, "free_memory", lambda gpu: 16 * GB)

        assert engine_polars_gpu.backend_of(job_of(tmp_path, rows=rows), "auto", gpus) == way

    def test_long_texts_count_by_the_spool(self, tmp_path: Path) -> None:
        job = job_of(tmp_path, rows=1000, spool=b" " * 100_000)

        assert engine_polars_gpu.fits(job, 10_000_000)
        assert not engine_polars_gpu.fits(job, 1_000_000)

    def test_asked_for_it_is_taken(self, tmp_path: Path) -> None:
        job = job_of(tmp_path, rows=10)

        assert engine_polars_gpu.backend_of(job, "streaming", ["0", "1"]) == "streaming"

    def test_a_table_of_libcudf_holds_so_many_rows(self, tmp_path: Path) -> None:
        assert not engine_polars_gpu.fits(job_of(tmp_path, rows=1 << 31), 1 << 60)


class TestFailures:
    def test_too_little_memory_names_a_way_that_takes_less(self, tmp_path: Path) -> None:
        plan = failing(MemoryError("std::bad_alloc: out_of_memory: CUDA error\nat line 1"))

        with pytest.raises(DeviceError) as refused:
            Runner(pl.GPUEngine(), tmp_path).collect(plan)

        assert str(refused.value) == (
            "--engine polars-gpu failed: MemoryError: std::bad_alloc: out_of_memory: CUDA error: "
            "is there enough GPU memory? --gpu-executor streaming takes less, --engine polars none"
        )

    def test_what_chunks_cannot_do_is_a_fallback_too(self, tmp_path: Path) -> None:
        plan = failing(NotImplementedError("row_index is not supported for multiple partitions."))
        told: list[str] = []

        with pytest.raises(DeviceError, match=r"row_index is not supported .* --allow-fallback"):
            Runner(pl.GPUEngine(), tmp_path).collect(plan)
        allowed = Runner(pl.GPUEngine(), tmp_path, told.append)

        assert [allowed.collect(plan).item() for _ in range(2)] == [1, 1]
        assert len(told) == 1


def failing(error: Exception) -> pl.LazyFrame:
    """A plan that fails on a GPU and gives 1 on the CPU."""

    def collect(*, engine: object) -> pl.DataFrame:
        if engine != "streaming":
            raise error
        return pl.DataFrame({"x": [1]})

    return cast("pl.LazyFrame", SimpleNamespace(collect=collect))


def job_of(folder: Path, *, rows: int, spool: bytes = b"") -> Job:
    """A job of so many Criteo rows, all to train."""
    options = PrepareOptions(split=SplitRule(valid_fraction=0, test_fraction=0))
    columns = pl.LazyFrame(schema=dict.fromkeys((*CRITEO.dense, *CRITEO.categorical), pl.String))
    job = Job(CRITEO, options, columns, {"train": rows}, folder, GB)
    (job.scratch / "spool").mkdir(parents=True)
    (job.scratch / "spool" / "part-00000.parquet").write_bytes(spool)
    return job


def pretend_driver(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, *, gpus: int | None = None, cuda: int = 13000
) -> None:
    """Make it look as if cudf-polars were installed, and a driver unless ``gpus`` is None."""

    class NVMLError(Exception):
        pass

    def init() -> None:
        if gpus is None:
            raise NVMLError("Library Not Found")

    driver = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=init,
        nvmlDeviceGetCount=lambda: gpus,
        nvmlSystemGetCudaDriverVersion=lambda: cuda,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=lambda _gpu: SimpleNamespace(free=16 * GB),
    )
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)


def test_its_name_is_known() -> None:
    assert engine_named("polars-gpu") == PolarsGpuEngine()
