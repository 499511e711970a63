"""The CUDA C compiled to machine code for GPUs that are not there, and what it takes of them."""

from __future__ import annotations

import sys

import pytest

from stampede import DeviceError
from stampede.kernels.cuda import compile as compile_module
from stampede.kernels.cuda.accumulate import TILE
from stampede.kernels.cuda.compile import ARCHITECTURES, compile_source
from stampede.kernels.cuda.launch import SOURCES, source_of

MAX_REGISTERS = {
    "sum_tiles": 128
}  # of 65,536: two blocks of 256 threads at once, which hide latency by loads ahead
MAX_REGISTERS_ELSEWHERE = 64  # four blocks
MAX_SHARED_BYTES = 32_768  # two blocks on the smallest multiprocessor, Turing's


@pytest.fixture(autouse=True)
def _nvrtc() -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed", exc_type=ImportError)
    pytest.importorskip("nvidia.cu13", reason="nvidia-cuda-nvrtc is not installed", exc_type=ImportError)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("source", SOURCES)
def test_every_kernel_compiles_and_spills_nothing(source: str, architecture: str) -> None:
    cubin, usages = compile_source(source, architecture)
    assert cubin.startswith(b"\x7fELF")
    kernels = {usage.kernel for usage in usages}
    assert kernels == {kernel for kernel in KERNELS if f" {kernel}(" in source_of(source)}
    for usage in usages:
        assert usage.spill_bytes == usage.stack_bytes == 0, usage
        assert 0 < usage.registers <= MAX_REGISTERS.get(usage.kernel, MAX_REGISTERS_ELSEWHERE), usage
        assert usage.shared_bytes <= MAX_SHARED_BYTES, usage


KERNELS = {
    "clear_slots",
    "fold_tiles",
    "gather_linear",
    "gather_rows",
    "sum_tiles",
    "update_entries",
    "update_table",
    "update_values",
}


def test_the_tile_is_the_same_on_both_sides() -> None:
    assert f"constexpr int TILE = {TILE};" in source_of("reduce")


def test_an_error_of_the_compiler_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_module, "source_of", lambda name: "no C at all")
    with pytest.raises(DeviceError, match=r"(?s)update.cu does not compile for sm_90.*error"):
        compile_source("update", "sm_90")


def test_the_table_names_kernels_and_architectures(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setattr(sys, "argv", ["compile", "sm_90", "--out", str(tmp_path)])
    compile_module.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(KERNELS)
    assert {line.split()[0] for line in lines[1:]} == KERNELS
    assert all(line.split()[1] == "sm_90" for line in lines[1:])
