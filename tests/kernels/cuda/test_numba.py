"""The numba-cuda kernels: their values in numba's simulator, and that they compile for GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed", exc_type=ImportError)

SIMULATED = Path(__file__).parent / "simulated.py"

COMPILE = """
import warnings
from numba import cuda
from numba.types import Array, float32, int8, int16, int32, int64, uint8
from stampede.kernels.cuda import batch, clip

def matrix(dtype): return Array(dtype, 2, "C")
def vector(dtype): return Array(dtype, 1, "C")
def rows(dense): return matrix(int32), matrix(dense), vector(int8)

kernels = {
    "gather_rows": (batch.gather_rows, [
        (*rows(dense), vector(int64), *rows(dense))
        for dense in (float32, int16)
    ]),
    "clip_kernel": (clip.clip_kernel, [
        (matrix(float32), matrix(float32), vector(counts), matrix(float32), vector(uint8), float32, float32)
        for counts in (int32, int64)
    ]),
}
for capability in ((7, 5), (8, 0), (9, 0), (10, 0)):
    for name, (kernel, signatures) in kernels.items():
        for signature in signatures:
            ptx, _ = cuda.compile_ptx(kernel, signature, cc=capability)
            assert f".target sm_{capability[0]}{capability[1]}" in ptx
            doubles = sum(".f64" in line for line in ptx.splitlines())
            print(name, capability, "float64 instructions:", doubles)
"""


def run(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_values_in_the_simulator_are_those_of_plain_torch() -> None:
    assert run(str(SIMULATED), NUMBA_ENABLE_CUDASIM="1") == "simulated\n"


def test_kernels_compile_for_every_architecture_without_double_precision() -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed", exc_type=ImportError)
    pytest.importorskip("nvidia.cu13", reason="nvidia-nvvm is not installed", exc_type=ImportError)
    lines = run("-c", COMPILE, NUMBA_ENABLE_CUDASIM="0").splitlines()
    assert len(lines) == 16
    assert all(line.endswith("float64 instructions: 0") for line in lines), lines


def test_tensors_elsewhere_are_refused() -> None:
    from stampede.kernels.cuda import Batch, gather_batch

    rows = Batch(torch.zeros(3, 1, dtype=torch.int32), torch.zeros(3, 1), torch.zeros(3, dtype=torch.int8))
    with pytest.raises(ValueError, match="the kernels run on CUDA tensors, not on cpu"):
        gather_batch(rows, torch.zeros(2, dtype=torch.int64))
