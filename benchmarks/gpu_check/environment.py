"""Section ``environment``: the machine, what is installed, and which commit this is."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.options import Options
from benchmarks.gpu_check.record import Findings, Part
from benchmarks.gpu_check.standins import is_importable

ROOT = Path(__file__).parents[2]

NEEDED = (
    *("jinja2", "numba", "numpy", "plotly", "polars", "pydantic", "rich", "safetensors", "tensorboard"),
    *("tomli_w", "torch", "typer", "zstandard"),
)
"""Import names of what the package depends on."""

FOR_GPU = ("cupy", "numba_cuda", "triton", "cudf_polars", "dask_cuda")

DISTRIBUTIONS = (
    *("torch", "numpy", "numba", "numba-cuda", "cupy-cuda13x", "cupy-cuda12x", "cupy", "triton"),
    *("polars", "pydantic", "cudf-polars-cu13", "cudf-polars-cu12", "safetensors", "typer"),
)


def missing(options: Options) -> str | None:
    """Nothing: it runs everywhere."""


def parts(options: Options) -> list[Part]:
    """Software, then the device."""
    return [
        Part("software", _software),
        Part("device", lambda findings: _device(findings, options.device)),
    ]


def _software(findings: Findings) -> None:
    findings.note(
        python=platform.python_version(),
        system=platform.platform(),
        cpu=_cpu_model(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        commit=_command("git", "-C", ROOT, "rev-parse", "HEAD"),
        changed_files=(_command("git", "-C", ROOT, "status", "--porcelain") or "").splitlines(),
        source_sha256=_digest(),
        versions={name: _version(name) for name in DISTRIBUTIONS},
    )
    findings.note(
        missing=[name for name in NEEDED if not is_importable(name)],
        missing_for_gpu=[name for name in FOR_GPU if not is_importable(name)],
    )


def _device(findings: Findings, name: str) -> None:
    import torch

    device = torch.device(name)
    findings.note(device=str(device), torch_cuda=torch.version.cuda)
    if device.type != "cuda":
        torch.ones(8, device=device).sum().item()
        return
    query = "name,driver_version,memory.total,clocks.sm,clocks.max.sm,power.limit"
    findings.note(nvidia_smi=_command("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"))
    if not torch.cuda.is_available():
        findings.fault("torch sees no GPU")
        return
    gpu = torch.cuda.get_device_properties(device)
    findings.note(
        gpu=gpu.name,
        gpus=torch.cuda.device_count(),
        capability=f"{gpu.major}.{gpu.minor}",
        multiprocessors=gpu.multi_processor_count,
        gpu_memory_bytes=gpu.total_memory,
        gpu_memory_free_bytes=torch.cuda.mem_get_info(device)[0],
        cudnn=torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
    )
    if torch.ones(8, device=device).sum().item() != 8:
        findings.fault("a sum on the GPU is wrong")


def _digest() -> str:
    """Name the state of the code, where there is no git to ask."""
    digest = hashlib.sha256()
    for folder in ("benchmarks", "kernels", "training", "pipeline", "workflows", "cli"):
        for file in sorted((ROOT / folder).rglob("*")):
            if file.suffix in (".py", ".cu", ".cuh", ".toml"):
                digest.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str | None:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(": ")[2]
    return None


def _command(*words: Any) -> str | None:
    try:
        ended = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ended.stdout.strip() if ended.returncode == 0 else None
