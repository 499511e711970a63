"""The CUDA C kernels on the CPU, for tests of their values and of the code that launches them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
from tests.kernels.cuda.cuda_on_cpu import COMPILER, CpuKernels

from stampede.kernels.cuda import launch


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> CpuKernels:
    if COMPILER is None:
        pytest.skip("g++ is not installed: the CUDA C cannot be run on the CPU")
    return CpuKernels(tmp_path_factory.mktemp("cuda_on_cpu"))


@pytest.fixture(scope="module")
def on_cpu(compiled: CpuKernels) -> Iterator[CpuKernels]:
    """Run launches on the CPU, on CPU tensors; module-wide, so that hypothesis may use it."""
    pack = launch.pack

    def remember_and_pack(arguments: Sequence[Any]) -> Any:
        compiled.remember(arguments)
        return pack(arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "load", compiled.load)
        patch.setattr(launch, "on_stream", lambda device: nullcontext())
        patch.setattr(launch, "pack", remember_and_pack)
        yield compiled
