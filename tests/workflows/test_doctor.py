"""What the doctor finds, also on machines that are broken or have what this one lacks."""

from __future__ import annotations

import ast
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stampede.pipeline import machine
from stampede.workflows import doctor

if TYPE_CHECKING:
    from tests.conftest import Command

CODE = Path(__file__).parents[2]
GB = 10**9

# A torch that the child process imports instead of the real one: two GPUs, of which some cannot run a sum.
CUDA_TORCH = """
__version__ = "2.13.0"

class version:
    cuda = "13.0"

class Properties:
    name, total_memory, major, minor = "NVIDIA H200", 139 * 2**30, 9, 0

class cuda:
    current_device = staticmethod(lambda: {current_device})
    device_count = staticmethod(lambda: 2)
    get_device_properties = staticmethod(lambda index: Properties)
    mem_get_info = staticmethod(lambda index: (100 * 2**30, 139 * 2**30))

class ones:
    def __init__(self, size, device="cpu"):
        if device in {broken}:
            raise RuntimeError("CUDA error: no kernel image is available\\nmore lines")
    sum = item = lambda self: self
"""


def write(root: Path, files: dict[str, str]) -> Path:
    """Write small files under a folder that stands in for ``/``."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture
def cuda_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the root of a machine with a driver and a torch for CUDA."""
    version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\nGCC 12.3.0"
    root = write(tmp_path / "root", {"proc/driver/nvidia/version": version, "dev/nvidia0": ""})
    monkeypatch.setattr(doctor, "ROOT", root)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fake_torch(tmp_path, monkeypatch, broken=())
    return root


def fake_torch(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, broken: tuple[str, ...], current_device: str = "0"
) -> None:
    text = CUDA_TORCH.replace("{broken}", repr(broken)).replace("{current_device}", current_device)
    write(folder, {"torch/__init__.py": text})
    monkeypatch.syspath_prepend(folder)


def test_this_machine_can_prepare_and_train() -> None:
    report = doctor.run_doctor()

    assert report.problems == ()
    assert report.versions.polars == metadata.version("polars")
    assert report.versions.torch is not None
    assert report.versions.torch.startswith("2.")
    assert [(engine.name, engine.default) for engine in report.engines] == [
        ("polars", True),
        ("polars-gpu", False),
        ("nvtabular", False),
    ]
    assert report.engines[0].usable
    assert all(engine.usable == (engine.reason is None) for engine in report.engines[1:])
    assert [device.name for device in report.devices] == ["cpu", "cuda"]
    assert report.devices[0].usable
    assert report.devices[1].usable == (report.devices[1].reason is None)
    assert report.machine.cores is not None
    assert report.machine.cores > 0
    assert report.machine.memory_bytes is not None
    assert report.machine.memory_bytes > GB


class TestCommand:
    def test_json(self, stampede: Command) -> None:
        answer = stampede("doctor", "--json")

        assert answer.code == 0
        assert set(answer.json) == {
            "versions", "machine", "engines", "devices", "gpus", "driver", "packages", "problems",
        }  # fmt: skip

    def test_table_shows_gpus(self, stampede: Command, cuda_machine: Path) -> None:
        answer = stampede("doctor")

        lines = [" ".join(line.split()) for line in answer.out.splitlines()]
        assert answer.code == 0
        assert "torch 2.13.0 (CUDA 13.0 build)" in lines
        assert any(line.startswith("NVIDIA driver 580.95.05") for line in lines)
        assert "train --device cuda usable what auto takes" in lines
        assert "GPU 0 NVIDIA H200 usable 139.0 GiB, 100.0 GiB free, capability 9.0" in lines

    def test_an_empty_report_is_printed_too(self, stampede: Command, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object) -> None:
            raise OSError("not on this machine")

        for module, probe in (
            (machine, "cores"),
            (machine, "memory"),
            (doctor, "_driver"),
            (doctor, "_packages"),
            (doctor, "_version"),
        ):
            monkeypatch.setattr(module, probe, fail)
        monkeypatch.setattr("shutil.disk_usage", fail)
        monkeypatch.setattr("subprocess.run", fail)

        answer = stampede("doctor")

        assert answer.code == 0
        assert "memory     unknown" in answer.out
        assert "could not be found out: memory: OSError: not on this machine" in answer.out


class TestBrokenInstallations:
    @pytest.mark.parametrize(
        ("code", "reason"),
        [
            ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "it ends with SIGILL"),
            ("raise ImportError('libstdc++.so.6: version not found')", "libstdc++.so.6: version not found"),
            ("import time; time.sleep(60)", "it gives no answer within 5 s"),
            ("import os; os._exit(0)", "it ends with code 0 and no answer"),
        ],
        ids=["crash", "error", "hang", "silence"],
    )
    def test_a_package_that_does_not_load_takes_nothing_else_down(
        self, code: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(tmp_path, {"polars/__init__.py": code})
        fake_torch(tmp_path, monkeypatch, broken=())
        monkeypatch.setattr(doctor, "CHILD_TIMEOUT_S", 5)

        report = doctor.run_doctor()

        for engine in report.engines:  # the text stage of every engine is polars'
            assert not engine.usable
            assert engine.reason is not None
            assert reason in engine.reason
        assert report.versions.polars == metadata.version("polars")
        assert report.devices[0].usable

    def test_without_its_environment_nvtabular_says_how_to_make_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("STAMPEDE_NVTABULAR_PYTHON", str(tmp_path / "python"))

        engine = doctor.run_doctor().engines[2]

        assert (engine.name, engine.usable) == ("nvtabular", False)
        assert engine.reason is not None
        assert "make env-nvtabular" in engine.reason

    @pytest.mark.skipif(find_spec("cudf_polars") is not None, reason="cudf-polars is installed")
    def test_without_cudf_polars_its_engine_says_how_to_install_it(self) -> None:
        engine = doctor.run_doctor().engines[1]

        assert (engine.name, engine.usable) == ("polars-gpu", False)
        assert engine.reason == (
            "--engine polars-gpu: cudf-polars is not installed: pip install -c constraints-gpu.txt '.[gpu]'"
        )

    def test_without_torch_neither_device_works(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(
            tmp_path, {"torch/__init__.py": "raise OSError('libcudnn.so.9: cannot open shared object file')"}
        )
        monkeypatch.syspath_prepend(tmp_path)

        report = doctor.run_doctor()

        assert [device.usable for device in report.devices] == [False, False]
        assert all("libcudnn.so.9" in (device.reason or "") for device in report.devices)


class TestGpus:
    def test_each_is_tried(self, cuda_machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        fake_torch(tmp_path, monkeypatch, broken=("cuda:1",))

        report = doctor.run_doctor()

        assert [gpu.usable for gpu in report.gpus] == [True, False]
        assert report.gpus[1].reason == "CUDA error: no kernel image is available"
        assert [(d.name, d.usable, d.default) for d in report.devices] == [
            ("cpu", True, False),
            ("cuda", True, True),
        ]
        assert report.driver is not None
        assert report.driver.version == "580.95.05"

    def test_the_first_decides_since_training_takes_it(
        self, cuda_machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fake_torch(tmp_path, monkeypatch, broken=("cuda:0",))

        cuda = doctor.run_doctor().devices[1]

        assert (cuda.usable, cuda.default) == (False, True)
        assert cuda.reason == "CUDA error: no kernel image is available"

    def test_a_driver_that_is_too_old_says_so(
        self, cuda_machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        error = "(_ for _ in ()).throw(RuntimeError('The NVIDIA driver on your system is too old'))"
        fake_torch(tmp_path, monkeypatch, broken=(), current_device=error)

        report = doctor.run_doctor()

        assert report.devices[1].reason is not None
        assert "too old" in report.devices[1].reason
        assert report.devices[0].default

    @pytest.mark.parametrize(
        ("cuda", "driver", "visible", "files", "reason"),
        [
            (None, "580.1", None, ["dev/nvidia0"], "CPU build"),
            ("13.0", None, None, [], "no NVIDIA driver"),
            ("13.0", "580.1", None, [], "--gpus all"),
            ("13.0", "580.1", "", ["dev/nvidia0"], "CUDA_VISIBLE_DEVICES="),
            ("13.0", "580.1", "-1", ["dev/nvidia0"], "CUDA_VISIBLE_DEVICES=-1"),
        ],
    )
    def test_why_there_is_none(
        self,
        cuda: str | None,
        driver: str | None,
        visible: str | None,
        files: list[str],
        reason: str,
        tmp_path: Path,
    ) -> None:
        root = write(tmp_path, dict.fromkeys(files, ""))
        torch = {"version": "2.13.0", "cuda": cuda}

        why = doctor._why_no_gpu(torch, driver, visible, root)

        assert why is not None
        assert reason in why
        assert ";" not in why

    @pytest.mark.parametrize("files", [["dev/nvidia0"], ["dev/dxg"]])
    def test_nothing_rules_one_out(self, files: list[str], tmp_path: Path) -> None:
        root = write(tmp_path, dict.fromkeys(files, ""))

        assert doctor._why_no_gpu({"version": "2.13.0", "cuda": "13.0"}, "580.1", "0", root) is None


class TestLimits:
    def test_of_a_control_group_and_those_above_it(self, tmp_path: Path) -> None:
        root = write(
            tmp_path,
            {
                "proc/self/cgroup": "0::/job/task\n",
                "sys/fs/cgroup/job/task/memory.max": "max\n",
                "sys/fs/cgroup/job/memory.max": "1000000\n",
                "sys/fs/cgroup/job/task/cpu.max": "50000 100000\n",
                "sys/fs/cgroup/job/cpu.max": "max 100000\n",
            },
        )

        assert machine.memory(root) == 1_000_000
        assert machine.cores(root) == 0.5

    def test_of_the_first_version_in_a_container_that_sees_the_path_of_the_host(self, tmp_path: Path) -> None:
        root = write(
            tmp_path,
            {
                "proc/self/cgroup": "4:memory:/docker/a\n3:cpu,cpuacct:/docker/a\n1:name=systemd:/\n0::/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "2000000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "75000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
        )

        assert machine.memory(root) == 2_000_000
        assert machine.cores(root) == 0.75

    @pytest.mark.parametrize(
        "files", [{}, {"proc/self/cgroup": "0::/\n"}, {"proc/self/cgroup": "3:cpu:/\n2:memory:/\n"}]
    )
    def test_none(self, files: dict[str, str], tmp_path: Path) -> None:
        write(tmp_path, files | {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1"})

        assert machine.memory(tmp_path) > GB
        assert machine.cores(tmp_path) >= 1


def test_every_optional_package_that_the_code_imports_is_said_to_be_needed() -> None:
    distributions = {
        "cudf_polars": "cudf-polars-cu13",
        "cupy": "cupy-cuda13x",
        "dask_cuda": "dask-cuda",
        "fastapi": "fastapi",
        "numba_cuda": "numba-cuda",
        "onnx": "onnx",
        "onnxruntime": "onnxruntime",
        "onnxscript": "onnxscript",
        "optuna": "optuna",
        "prometheus_client": "prometheus-client",
        "uvicorn": "uvicorn",
    }
    imported = set()
    for folder in ("pipeline", "kernels", "training", "workflows", "cli"):
        for file in (CODE / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Import):
                    imported |= {alias.name.split(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module:
                    imported.add(node.module.split(".")[0])
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    imported.add(node.value)  # for importlib

    assert {package.name for package in doctor._packages()} == set(distributions.values())
    assert {distributions[name] for name in imported & set(distributions)} == set(doctor.NEEDED_BY)
