"""The stand-in for a GPU itself: it finds what would be undefined there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.kernels.cuda.cuda_on_cpu import COMPILER, CpuKernels, Parameter

from stampede.kernels.cuda.launch import Kernel, pack

SOURCE = """
extern "C" __global__ void __launch_bounds__(64) leaves_early(const float* in, float* out) {
    if (threadIdx.x % 32 == 7) return;
    out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, in[threadIdx.x], 1);
}
extern "C" __global__ void __launch_bounds__(64) waits_apart(const float* in, float* out) {
    if (threadIdx.x < 40) __syncthreads();
    else out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, in[threadIdx.x], 1);
}
extern "C" __global__ void __launch_bounds__(64) races(const float* in, float* out, int barrier) {
    __shared__ float values[64];
    values[threadIdx.x] = in[threadIdx.x];
    if (barrier) __syncthreads();
    out[threadIdx.x] = values[(threadIdx.x + 1) % 64];
}
extern "C" __global__ void __launch_bounds__(64) counts(const float* in, float* out) {
    const int positive = __syncthreads_count(in[threadIdx.x] > 0);
    float sum = in[threadIdx.x];
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    out[threadIdx.x] = sum + 1000 * positive;
}
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> CpuKernels:
    if COMPILER is None:
        pytest.skip("g++ is not installed: the CUDA C cannot be run on the CPU")
    return CpuKernels(tmp_path_factory.mktemp("stand_in"), {"some": SOURCE})


def run(kernels: CpuKernels, name: str, *arguments: torch.Tensor | np.generic) -> None:
    kernels.remember(arguments)
    kernels.load(Kernel("some", name))((1,), (64,), pack(arguments))


def test_signatures_are_read_from_the_source(kernels: CpuKernels) -> None:
    assert kernels.signatures["some"]["races"] == [
        Parameter("in", "float", is_pointer=True, is_constant=True),
        Parameter("out", "float", is_pointer=True, is_constant=False),
        Parameter("barrier", "int", is_pointer=False, is_constant=False),
    ]


@pytest.mark.parametrize("name", ["leaves_early", "waits_apart"])
def test_threads_that_wait_in_vain_are_found(kernels: CpuKernels, name: str) -> None:
    with pytest.raises(AssertionError, match="some threads wait for others that never come"):
        run(kernels, name, torch.ones(64), torch.ones(64))


def test_a_missing_barrier_shows_as_nan_or_in_the_other_order(kernels: CpuKernels) -> None:
    values, out = torch.arange(64.0), torch.empty(64)
    run(kernels, "races", values, out, np.int32(1))
    assert out.tolist() == values.roll(-1).tolist()
    run(kernels, "races", values, out, np.int32(0))
    assert out.isnan().any()


def test_barriers_and_warps_do_what_they_do_on_a_gpu(kernels: CpuKernels) -> None:
    values, out = torch.arange(64.0), torch.empty(64)
    run(kernels, "counts", values, out)
    sums = [values[:32].sum().item(), values[32:].sum().item()]
    assert out.tolist() == [63_000 + sums[0]] * 32 + [63_000 + sums[1]] * 32


def test_arguments_that_do_not_fit_the_signature_are_found(kernels: CpuKernels) -> None:
    values = torch.ones(64)
    with pytest.raises(AssertionError, match="races"):
        run(kernels, "races", values, values)
    with pytest.raises(AssertionError, match="barrier"):
        run(kernels, "races", values, values, np.int64(1))
    with pytest.raises(AssertionError, match=r"torch\.int32"):
        run(kernels, "races", values.int(), values, np.int32(1))


def test_every_kernel_of_the_package_is_read(compiled: CpuKernels) -> None:
    folder = Path(__file__).parents[3] / "kernels" / "cuda"
    sources = "".join(file.read_text() for file in folder.glob("*.cu"))
    assert sum(len(found) for found in compiled.signatures.values()) == sources.count("__global__") == 8
