"""``stampede doctor``: what this machine can run, and why not.

Every probe stands alone: one that fails leaves its answer out and its reason in ``Report.problems``. What
loads compiled code (polars, torch, the GPU driver) is asked in a process of its own, which may crash or hang.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from stampede import __version__
from stampede.pipeline import machine

DISTRIBUTION = "stampede-ctr"
CHILD_TIMEOUT_S = 120
ROOT = Path("/")

# Distribution -> the feature that imports it. A package of an extra that is not here serves nothing yet.
NEEDED_BY: dict[str, str] = {
    "cudf-polars-cu13": "prepare --engine polars-gpu",
    "cupy-cuda13x": "train --device cuda",
    "dask-cuda": "prepare --engine polars-gpu, on several GPUs",
    "fastapi": "serve",
    "numba-cuda": "train --device cuda",
    "onnx": "export --format onnx",
    "onnxruntime": "export --format onnx",
    "onnxscript": "export --format onnx",
    "optuna": "sweep --search",
    "prometheus-client": "serve",
    "uvicorn": "serve",
}

T = TypeVar("T")


@dataclass(frozen=True)
class Versions:
    """What is installed; ``torch_cuda`` is the CUDA version that torch was built for, None in a CPU build."""

    stampede: str
    python: str
    torch: str | None
    torch_cuda: str | None
    polars: str | None


@dataclass(frozen=True)
class Machine:
    """What the process may use: a container's limits count, not the host's sizes."""

    system: str
    cores: float | None
    memory_bytes: int | None
    folder: str
    disk_free_bytes: int | None


@dataclass(frozen=True)
class Choice:
    """A value of ``--engine`` or ``--device``: whether it works here, and why not."""

    name: str
    usable: bool
    default: bool
    reason: str | None


@dataclass(frozen=True)
class Gpu:
    """A GPU that torch sees; usable where a sum ran on it."""

    index: int
    name: str
    memory_bytes: int
    memory_free_bytes: int
    capability: str
    usable: bool
    reason: str | None


@dataclass(frozen=True)
class Driver:
    """The NVIDIA driver, and the newest CUDA version that it can run."""

    version: str | None
    cuda: str | None


@dataclass(frozen=True)
class Package:
    """A package of an extra: its version, None where it is not installed, and what makes use of it."""

    name: str
    extra: str
    version: str | None
    requirement: str
    needed_by: str | None


@dataclass(frozen=True)
class Report:
    """All that could be found out; ``problems`` says what could not."""

    versions: Versions
    machine: Machine
    engines: tuple[Choice, ...]
    devices: tuple[Choice, ...]
    gpus: tuple[Gpu, ...]
    driver: Driver | None
    packages: tuple[Package, ...]
    problems: tuple[str, ...]


def run_doctor(folder: Path | None = None) -> Report:
    """Find out what this machine can run.

    Parameters
    ----------
    folder:
        Where data would be written; None takes the working folder.
    """
    problems: list[str] = []

    def ask(what: str, probe: Callable[[], T], otherwise: T) -> T:
        try:
            return probe()
        except Exception as error:
            problems.append(f"{what}: {type(error).__name__}: {_first_line(error)}")
            return otherwise

    place = ask("working folder", lambda: folder or Path.cwd(), ROOT)
    polars, polars_reason = _in_child("load_polars")
    polars_gpu, polars_gpu_reason = _in_child("load_polars_gpu")
    nvtabular, nvtabular_reason = _in_child("load_nvtabular")
    torch, torch_reason = _in_child("load_torch")
    driver = ask("driver", lambda: _driver(ROOT), None)
    gpus, driver_cuda, cuda_reason = _gpus(torch, torch_reason, driver)
    cuda_usable = bool(gpus) and gpus[0].usable  # training takes the first
    if gpus:
        cuda_reason = gpus[0].reason
    return Report(
        versions=Versions(
            stampede=__version__,
            python=platform.python_version(),
            torch=torch["version"] if torch else ask("torch", lambda: _version("torch"), None),
            torch_cuda=torch["cuda"] if torch else None,
            polars=polars["version"] if polars else ask("polars", lambda: _version("polars"), None),
        ),
        machine=Machine(
            system=f"{platform.system()} {platform.machine()}",
            cores=ask("cores", lambda: machine.cores(ROOT), None),
            memory_bytes=ask("memory", lambda: machine.memory(ROOT), None),
            folder=str(place),
            disk_free_bytes=ask("disk", lambda: shutil.disk_usage(place).free, None),
        ),
        engines=(
            Choice("polars", polars is not None, True, polars_reason),
            Choice("polars-gpu", polars_gpu is not None, False, polars_gpu_reason),
            Choice("nvtabular", nvtabular is not None, False, nvtabular_reason),
        ),
        devices=(
            Choice("cpu", torch is not None, not gpus, torch_reason),
            Choice("cuda", cuda_usable, bool(gpus), cuda_reason),
        ),
        gpus=gpus,
        driver=None if driver is None else Driver(driver or None, driver_cuda),
        packages=ask("optional packages", _packages, ()),
        problems=tuple(problems),
    )


def load_polars() -> dict[str, Any]:
    """Run a query, in a child process."""
    import polars

    polars.LazyFrame({"x": [1, 2]}).sum().collect(engine="streaming")
    return {"version": polars.__version__}


def load_polars_gpu() -> dict[str, Any]:
    """Run a query on the GPU, in a child process."""
    from stampede.pipeline.engine import engine_named

    engine_named("polars-gpu").check()
    return {}


def load_nvtabular() -> dict[str, Any]:
    """Import NVTabular where the engine would, in a child process."""
    from stampede.pipeline.engine import engine_named

    engine_named("nvtabular").check()
    return {}


def load_torch() -> dict[str, Any]:
    """Run a sum on the CPU, in a child process."""
    import torch

    torch.ones(2).sum().item()
    return {"version": torch.__version__, "cuda": torch.version.cuda}


def load_gpus() -> dict[str, Any]:
    """Run a sum on every GPU that torch sees, in a child process."""
    import torch

    with warnings.catch_warnings():  # what matters of them is in the error too
        warnings.simplefilter("ignore")
        torch.cuda.current_device()
        return {"gpus": [_gpu(index) for index in range(torch.cuda.device_count())], "cuda": _driver_cuda()}


def _gpu(index: int) -> dict[str, Any]:
    import torch

    properties = torch.cuda.get_device_properties(index)
    facts: dict[str, Any] = {
        "index": index,
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "memory_free_bytes": 0,
        "capability": f"{properties.major}.{properties.minor}",
        "usable": True,
        "reason": None,
    }
    try:
        facts["memory_free_bytes"] = torch.cuda.mem_get_info(index)[0]
        torch.ones(2, device=f"cuda:{index}").sum().item()
    except Exception as error:  # such as a GPU too old for the build, or one that another process holds alone
        facts |= {"usable": False, "reason": _first_line(error)}
    return facts


def _driver_cuda() -> str | None:
    version = ctypes.c_int()
    try:
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)) != 0:
            return None
    except OSError:
        return None
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def _in_child(probe: str) -> tuple[dict[str, Any] | None, str | None]:
    """Return what a function of this module answers in a fresh process, or why it does not."""
    code = f"import sys; sys.path[:] = {sys.path!r}\nfrom {__name__} import answer; answer({probe!r})"
    try:
        child = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=CHILD_TIMEOUT_S, check=False
        )
        if child.returncode < 0:
            return None, f"it ends with {signal.Signals(-child.returncode).name}"
        if child.returncode > 0 or not child.stdout.strip():
            return None, f"it ends with code {child.returncode} and no answer"
        found = json.loads(child.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return None, f"it gives no answer within {CHILD_TIMEOUT_S} s"
    except Exception as error:
        return None, f"it cannot be asked: {type(error).__name__}: {_first_line(error)}"
    return found["facts"], found["reason"]


def answer(probe: str) -> None:
    """Print what a probe finds as JSON: the other end of a child process."""
    facts, reason = None, None
    try:
        facts = {
            "load_polars": load_polars,
            "load_polars_gpu": load_polars_gpu,
            "load_nvtabular": load_nvtabular,
            "load_torch": load_torch,
            "load_gpus": load_gpus,
        }[probe]()
    except Exception as error:
        reason = _first_line(error)
    print(json.dumps({"facts": facts, "reason": reason}))


def _gpus(
    torch: dict[str, Any] | None, torch_reason: str | None, driver: str | None
) -> tuple[tuple[Gpu, ...], str | None, str | None]:
    """Return the GPUs, the CUDA version of the driver, and why there are none."""
    if torch is None:
        return (), None, f"torch does not work: {torch_reason}"
    reason = _why_no_gpu(torch, driver, os.environ.get("CUDA_VISIBLE_DEVICES"), ROOT)
    if reason is not None:
        return (), None, reason
    found, reason = _in_child("load_gpus")
    if found is None:
        return (), None, f"torch does not reach the GPU: {reason}"
    gpus = tuple(Gpu(**facts) for facts in found["gpus"])
    return gpus, found["cuda"], None if gpus else "torch finds no GPU"


def _why_no_gpu(torch: dict[str, Any], driver: str | None, visible: str | None, root: Path) -> str | None:
    """Return everything that rules a GPU out before the driver is asked, None where nothing does."""
    reasons = []
    if torch["cuda"] is None:
        reasons.append(f"torch {torch['version']} is a CPU build (pip's default on Linux is the CUDA build)")
    if driver is None:
        reasons.append("no NVIDIA driver (neither /proc/driver/nvidia/version nor nvidia-smi)")
    elif not any((root / "dev").glob("nvidia[0-9]*")) and not (root / "dev/dxg").exists():  # dxg: WSL
        reasons.append("the NVIDIA driver shows no GPU here (a container needs --gpus all)")
    if visible is not None and (not visible.strip() or visible.strip().startswith("-")):
        reasons.append(f"CUDA_VISIBLE_DEVICES={visible} hides every GPU")
    return "; ".join(reasons) or None


def _driver(root: Path) -> str | None:
    """Return the driver's version, "" where it is there and does not tell, None where there is none."""
    file = root / "proc/driver/nvidia/version"
    if file.exists():
        found = re.search(r"\b\d+\.\d+(\.\d+)?\b", file.read_text())
        return found[0] if found else ""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    query = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    told = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    return told.stdout.splitlines()[0].strip() if told.returncode == 0 and told.stdout.strip() else ""


def _packages() -> tuple[Package, ...]:
    """Return the packages that the extras name, but for those of development and of the documentation."""
    packages = []
    for line in metadata.requires(DISTRIBUTION) or ():
        requirement, _, marker = line.partition(";")
        extra = re.search(r"extra == [\"'](\w+)[\"']", marker)
        name = re.match(r"[\w.-]+", requirement)
        if extra is None or name is None or extra[1] in ("dev", "docs") or name[0] == DISTRIBUTION:
            continue
        packages.append(
            Package(name[0], extra[1], _version(name[0]), requirement.strip(), NEEDED_BY.get(name[0]))
        )
    return tuple(packages)


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
