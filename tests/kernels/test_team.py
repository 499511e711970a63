"""Who runs a kernel does not decide what it computes; its machine code is vectorised, and kept on disk."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from stampede.kernels import lookup, make_accumulator, update_entries, update_table, update_values
from stampede.kernels.cpu import team

SIZES = (3000, 5, 900)
ROWS, BATCH, DIM = sum(SIZES), 1000, 33  # two tasks and more for each kernel


@pytest.fixture
def two_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@pytest.fixture
def in_pool(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Take torch's OpenMP away; give the threads of each run of the pool."""
    runs: list[int] = []
    run_in_pool = team._run_in_pool

    def run(call: Any, pointer: int, threads: int) -> None:
        runs.append(threads)
        run_in_pool(call, pointer, threads)

    monkeypatch.setattr(team, "_openmp_parallel", lambda: None)
    monkeypatch.setattr(team, "_run_in_pool", run)
    return runs


def compute(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Do the work of a step by every kernel, and give all that it writes."""
    generator = torch.Generator().manual_seed(3)

    def draw(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=dtype)

    offsets = torch.tensor([0, 3000, 3005, ROWS])
    ids = (draw(BATCH, 3) ** 3 * torch.tensor(SIZES)).int()
    table, linear = draw(ROWS, DIM), draw(ROWS, 1)
    values, first_order = lookup(table, linear, ids, offsets=offsets)
    accumulator = make_accumulator(SIZES, DIM, batch_rows=BATCH, linear=True, dtype=dtype)
    accumulator.add(ids, draw(BATCH, 3, DIM), draw(BATCH))
    sums, linear_sums = accumulator.finish()
    assert first_order is not None
    assert linear_sums is not None
    results = [values, first_order, sums.to_dense(), linear_sums.to_dense(), sums.index.dense_counts()]
    for update in (update_table, update_entries):
        state = [table.clone(), torch.zeros_like(table), torch.zeros_like(table)]
        for _ in range(2):
            clipped = update(
                state[0],
                sums,
                exp_avg=state[1],
                exp_avg_sq=state[2],
                rate=0.1,
                l2=1e-3,
                clip=(0.3, 1e-4),
            )
            results.append(clipped)
        results += state
    weights, means = draw(70_000), [torch.zeros(70_000, dtype=dtype) for _ in range(2)]
    update_values(weights, draw(70_000), exp_avg=means[0], exp_avg_sq=means[1], rate=0.1, l2=1e-3)
    accumulator.clear()
    return [*results, weights, *means]


def assert_same_bits(found: list[Tensor], expected: list[Tensor]) -> None:
    assert len(found) == len(expected)
    for position, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert torch.equal(a, b), position


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_thread_and_two_of_torchs_own_team_give_the_same_bits(
    dtype: torch.dtype, two_threads: None
) -> None:
    torch.set_num_threads(1)
    alone = compute(dtype)
    torch.set_num_threads(2)

    assert_same_bits(compute(dtype), alone)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other runtimes")
def test_on_linux_the_team_is_that_of_the_runtime_that_torch_has_loaded() -> None:
    assert team._openmp_parallel() is not None


def test_a_pool_of_its_own_gives_the_same_bits(two_threads: None, in_pool: list[int]) -> None:
    torch.set_num_threads(1)
    alone = compute()
    assert in_pool == []
    for threads in (2, 3):
        torch.set_num_threads(threads)

        assert_same_bits(compute(), alone)

    assert set(in_pool) == {2, 3}


@pytest.mark.parametrize("pool", [False, True])
def test_kernels_may_be_called_from_two_threads_at_once(
    pool: bool, two_threads: None, request: pytest.FixtureRequest
) -> None:
    expected = compute()
    if pool:
        request.getfixturevalue("in_pool")
    together = threading.Barrier(2)

    def repeat() -> list[list[Tensor]]:
        torch.set_num_threads(2)
        together.wait()
        return [compute() for _ in range(5)]

    with ThreadPoolExecutor(2) as threads:
        both = [threads.submit(repeat) for _ in range(2)]

    for results in both:
        for result in results.result():
            assert_same_bits(result, expected)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_forked_child_computes_with_a_pool_of_its_own(
    threads: int, two_threads: None, in_pool: list[int]
) -> None:
    """Torch's team is not to be had there: GNU's runtime does not survive a fork."""
    grads, start = torch.rand(200_000), torch.rand(200_000)

    def fresh() -> list[Tensor]:
        return [start.clone(), torch.zeros_like(start), torch.zeros_like(start)]

    def update(weights: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor) -> None:
        update_values(weights, grads, exp_avg=exp_avg, exp_avg_sq=exp_avg_sq, rate=0.1)

    expected, childs = fresh(), fresh()  # the child may not let torch itself use threads
    update(*expected)
    assert in_pool == [2]  # so that the parent's pool has its threads
    torch.set_num_threads(threads)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork of many threads
        child = os.fork()
    if child == 0:
        code = 3
        try:
            update(*childs)
            same = [a.numpy().tobytes() == b.numpy().tobytes() for a, b in zip(childs, expected, strict=True)]
            code = 0 if all(same) else 4
        finally:
            os._exit(code)
    assert exit_code(child, seconds=30) == 0


def exit_code(child: int, *, seconds: float) -> int:
    """Wait for a child; end it where it hangs."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return -1


# --- machine code -------------------------------------------------------------------------------

UPDATE = """
import json, time
import torch
from stampede.kernels import cpu, update_table
from stampede.kernels.cpu import team
from stampede.kernels.rows import RowGradients, RowIndex

refused = []
cfunc = team._cfunc

def counting(*arguments, **options):
    compiler = cfunc(*arguments, **options)
    def compile(function):
        try:
            return compiler(function)
        except RuntimeError as error:
            refused.append(str(error))
            raise
    return compile

team._cfunc = counting
index = RowIndex(torch.arange(4), torch.ones(4, dtype=torch.int32), torch.arange(4, dtype=torch.int32))
weights, means = torch.ones(4, 3), [torch.zeros(4, 3) for _ in range(2)]
update_table(weights, RowGradients(index, torch.ones(4, 3)), exp_avg=means[0], exp_avg_sq=means[1],
             rate=0.1, clip=(1.0, 1e-5))
print("RESULT", json.dumps({"package": cpu.__path__[0], "refused": refused, "mean": means[0].tolist()}))
"""


def run_update(folder: Path, **environment: str) -> tuple[dict[str, Any], str]:
    """Run one update in a new process; give what it reports and all that it printed."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "XDG_", "PYTHON"))
    }
    folder.mkdir(exist_ok=True)
    finished = subprocess.run(
        [sys.executable, "-c", UPDATE],
        env={**inherited, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    report = next(line for line in finished.stdout.splitlines() if line.startswith("RESULT "))
    return json.loads(report.removeprefix("RESULT ")), finished.stdout


def package_folder() -> Path:
    spec = importlib.util.find_spec("stampede")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def cached_files(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder)): path.stat().st_mtime_ns
        for path in folder.rglob("*")
        if path.suffix in (".nbi", ".nbc")
    }


def test_the_update_is_of_packed_instructions_and_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    cache, source = tmp_path / "cache", str(package_folder().parent)

    first, assembly = run_update(tmp_path / "first", PYTHONPATH=source, NUMBA_CACHE_DIR=str(cache),
                                 NUMBA_DUMP_ASSEMBLY="1")  # fmt: skip
    files = cached_files(cache)
    second, nothing = run_update(tmp_path / "second", PYTHONPATH=source, NUMBA_CACHE_DIR=str(cache),
                                 NUMBA_DUMP_ASSEMBLY="1")  # fmt: skip

    assert first["mean"] == second["mean"]
    assert first["mean"][0] == pytest.approx([0.1] * 3)
    assert len(files) >= 2  # an index and its code
    assert cached_files(cache) == files
    assert "adam_values" in assembly
    assert "adam_values" not in nothing
    if torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512"):
        kernel = next(part for part in assembly.split("ASSEMBLY ") if "_table_kernel" in part)
        for packed in (r"vfn?m(add|sub)\d+ps", "vsqrtps", "vdivps"):
            assert re.search(rf"\b{packed}\s.*%[yz]mm", kernel), packed


def test_where_no_folder_can_be_written_to_kernels_are_compiled_for_the_process(tmp_path: Path) -> None:
    """Each ``__pycache__`` of a copied package is a file, and so is the user's home.

    Permissions would not keep root from writing.
    """
    copy = tmp_path / "copy" / "stampede"
    shutil.copytree(package_folder(), copy, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in [copy, *(path for path in copy.rglob("*") if path.is_dir())]:
        (folder / "__pycache__").touch()
    home = tmp_path / "home"
    home.touch()

    report, _ = run_update(tmp_path / "here", PYTHONPATH=str(copy.parent), HOME=str(home))

    assert Path(report["package"]).is_relative_to(copy)
    assert len(report["refused"]) == 1
    assert "no locator available" in report["refused"][0]
    assert report["mean"][0] == pytest.approx([0.1] * 3)
    assert cached_files(tmp_path) == {}


@pytest.mark.parametrize("left", [0, 20], ids=["empty", "cut short"])
@pytest.mark.parametrize("kind", ["nbi", "nbc"])
def test_a_damaged_cache_is_compiled_past(tmp_path: Path, kind: str, left: int) -> None:
    code = (
        "import torch; from stampede.kernels import lookup; ids = torch.zeros(1, 1, dtype=torch.int32); "
        "print(lookup(torch.ones(2, 3), None, ids, offsets=torch.tensor([0, 2]))[0].sum().item())"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    for _ in range(2):
        answer = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
        )
        assert answer.stdout == "3.0\n", answer.stderr
        files = list(tmp_path.rglob(f"*.{kind}"))
        assert files
        for file in files:
            file.write_bytes(file.read_bytes()[:left])
