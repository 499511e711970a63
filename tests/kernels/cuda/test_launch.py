"""How the CUDA C is launched: what is packed, and what is said where a package is missing."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from stampede import DeviceError
from stampede.kernels import cuda
from stampede.kernels.cuda import launch
from stampede.kernels.cuda.launch import Kernel, import_gpu_package


def test_tensors_go_as_addresses_and_nothing_as_the_null_pointer() -> None:
    tensor = torch.zeros(3)
    packed = launch.pack([tensor, None, np.int32(7), np.float32(0.5)])
    assert [value.item() for value in packed] == [tensor.data_ptr(), 0, 7, 0.5]
    assert [type(value) for value in packed] == [np.uint64, np.uint64, np.int32, np.float32]


@pytest.mark.parametrize("number", [1, 1.0, True])
def test_plain_numbers_are_refused(number: Any) -> None:
    """CuPy passes 8 bytes for each of them, whatever the kernel takes."""
    with pytest.raises(TypeError, match="a kernel takes tensors and numpy's numbers, not"):
        launch.pack([number])


def test_a_kernel_runs_on_torchs_stream_with_its_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    class Stream:
        def __enter__(self) -> None:
            calls.append("stream")

        def __exit__(self, *error: object) -> None:
            calls.append("back")

    monkeypatch.setattr(
        launch, "load", lambda kernel: lambda *launched: calls.append((kernel.name, *launched))
    )
    monkeypatch.setattr(launch, "on_stream", lambda device: Stream())
    kernel = Kernel("update", "some", threads=64)
    launch.launch(kernel, np.int32(3), blocks=5, device=torch.device("cuda"))
    launch.launch(kernel, np.int32(3), blocks=0, device=torch.device("cuda"))
    assert calls == ["stream", ("some", (5,), (64,), (3,)), "back"]


def test_a_missing_package_is_named_with_the_mend() -> None:
    with pytest.raises(DeviceError, match=r"needs no_such_package.*pip install 'stampede-ctr\[cuda\]'"):
        import_gpu_package("no_such_package.part")


def test_cpu_tensors_are_refused() -> None:
    with pytest.raises(ValueError, match="the kernels run on CUDA tensors, not on cpu"):
        launch.on_stream(torch.device("cpu"))


def test_importing_the_package_imports_no_gpu_package() -> None:
    program = (
        "import sys; from stampede.kernels import cuda; "
        "cuda.CudaRowAccumulator, cuda.gather, cuda.update_table; "
        "assert not {'cupy', 'numba.cuda'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_every_public_name_is_there() -> None:
    for name in cuda.__all__:
        if name not in ("Batch", "gather_batch", "clip_rows"):  # these need numba-cuda
            assert callable(getattr(cuda, name))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        cuda.nothing  # noqa: B018
