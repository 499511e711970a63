"""Where the runs of a study go: one a GPU, or so many side by side on the CPU's cores."""

from __future__ import annotations

import os
from collections.abc import Sequence

from stampede import ConfigError, DeviceError
from stampede.training.config import Device
from stampede.training.device import resolve_device
from stampede.workflows.sweep.pool import Slot


def slots_of(
    device: Device, *, devices: Sequence[int] | None, jobs: int | None, threads: int | None
) -> list[Slot]:
    """Return the places where runs go side by side.

    Parameters
    ----------
    device:
        That of the runs.
    devices:
        The GPUs to use, counted from 0 among those that this process sees; None takes all of them.
    jobs:
        How many runs at a time; None takes one a GPU, and one on a CPU.
    threads:
        CPU threads of a run; None divides the cores where several runs share them.

    Raises
    ------
    ConfigError
        ``devices`` without a GPU to run on.
    DeviceError
        There is no such GPU.
    """
    if resolve_device(device).type == "cpu":
        if devices is not None:
            raise ConfigError("--devices names GPUs, and the runs go on the CPU: leave it out, use --jobs")
        count = jobs or 1
        share = threads or (max(1, len(os.sched_getaffinity(0)) // count) if count > 1 else None)
        return [Slot(_thread_variables(share))] * count
    import torch

    visible = torch.cuda.device_count()
    chosen = list(range(visible)) if devices is None else list(devices)
    for index in chosen:
        if not 0 <= index < visible:
            raise DeviceError(f"--devices {index}: there are {visible} GPUs, counted from 0")
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = named.split(",") if named else [str(index) for index in range(visible)]
    count = jobs or len(chosen)
    return [
        Slot({"CUDA_VISIBLE_DEVICES": names[chosen[i % len(chosen)]], **_thread_variables(threads)})
        for i in range(count)
    ]


def _thread_variables(threads: int | None) -> dict[str, str]:
    """Return what tells torch and numba their threads before they are imported."""
    if threads is None:
        return {}
    return dict.fromkeys(("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
