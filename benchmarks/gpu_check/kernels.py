"""Section ``kernels``: every kernel against the plain references, and its time."""

from __future__ import annotations

from functools import partial

from benchmarks.gpu_check.options import Options
from benchmarks.gpu_check.record import Findings, Part


def missing(options: Options) -> str | None:
    """Want a GPU; the absence of CuPy or numba-cuda there is a fault of each part."""
    return None if options.device != "cpu" else "the kernels are a GPU's"


def parts(options: Options) -> list[Part]:
    """Check shape by shape, so that a wrong kernel of one leaves the others."""
    from stampede.kernels.cuda.cases import SHAPES

    return [Part(str(shape), partial(_check, number, options.device)) for number, shape in enumerate(SHAPES)]


def _check(number: int, device: str, findings: Findings) -> None:
    from stampede.kernels import cuda_kernels_missing
    from stampede.kernels.cuda import check_on_device
    from stampede.kernels.cuda.cases import SHAPES

    absent = cuda_kernels_missing()
    if absent is not None:
        findings.fault(absent)
        return
    rows = check_on_device(device, shapes=SHAPES[number : number + 1])
    findings.note(kernels=rows)
    for row in rows:
        if row["ok"] is False:
            findings.fault(f"{row['name']}: {'; '.join(row['faults'])}")
