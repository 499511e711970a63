"""Compiles the CUDA C for GPUs that need not be there, and says what each kernel takes of one.

``python -m stampede.kernels.cuda.compile [--out DIR] [ARCHITECTURE ...]`` prints a line for each kernel and
architecture. It needs NVRTC: ``pip install cuda-bindings nvidia-cuda-nvrtc``.
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from stampede import DeviceError
from stampede.kernels.cuda.launch import OPTIONS, SOURCES, import_gpu_package, source_of

ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_100")
"""Turing, Ampere, Hopper, Blackwell. CUDA 12's NVRTC takes sm_70 (Volta) as well."""


@dataclass(frozen=True)
class Usage:
    """What a thread or block of a kernel takes.

    Attributes
    ----------
    registers:
        Of a thread, 32 bits each; a multiprocessor has 65,536.
    shared_bytes:
        Of a block.
    stack_bytes, spill_bytes:
        Of a thread, in local memory: 0 unless registers ran out.
    """

    source: str
    kernel: str
    architecture: str
    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_bytes: int


def compile_source(name: str, architecture: str) -> tuple[bytes, list[Usage]]:
    """Compile one file of :data:`SOURCES` to machine code (a cubin).

    Raises
    ------
    stampede.DeviceError
        NVRTC is missing, or does not take the architecture or the source.
    """
    nvrtc = import_gpu_package("cuda.bindings.nvrtc")
    options = [f"--gpu-architecture={architecture}", "--ptxas-options=-v", *OPTIONS]
    try:
        _, program = nvrtc.nvrtcCreateProgram(source_of(name).encode(), f"{name}.cu".encode(), 0, [], [])
    except RuntimeError as error:  # the library itself is loaded by the first call
        raise DeviceError(f"NVRTC cannot be loaded ({error}): pip install nvidia-cuda-nvrtc") from error
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
    log = bytearray(nvrtc.nvrtcGetProgramLogSize(program)[1])
    nvrtc.nvrtcGetProgramLog(program, log)
    text = log.decode(errors="replace")
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise DeviceError(f"{name}.cu does not compile for {architecture}: {status.name}\n{text}")
    cubin = bytearray(nvrtc.nvrtcGetCUBINSize(program)[1])
    nvrtc.nvrtcGetCUBIN(program, cubin)
    return bytes(cubin), _usages(text, name, architecture)


def _usages(log: str, source: str, architecture: str) -> list[Usage]:
    """Read what ptxas says of each kernel."""
    usages = []
    for part in log.split("Compiling entry function")[1:]:

        def number(pattern: str, part: str = part) -> int:
            found = re.search(pattern, part)
            return int(found[1]) if found else 0

        kernel = re.search(r"'(\w+)'", part)
        usages.append(
            Usage(
                source=source,
                kernel=kernel[1] if kernel else "",
                architecture=architecture,
                registers=number(r"Used (\d+) registers"),
                shared_bytes=number(r"(\d+) bytes smem"),
                stack_bytes=number(r"(\d+) bytes stack frame"),
                spill_bytes=number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads"),
            )
        )
    return usages


def main() -> None:
    """Print the table, and write the cubins where asked to."""
    parser = argparse.ArgumentParser(description="Compile the CUDA C kernels without a GPU.")
    parser.add_argument(
        "architectures", nargs="*", metavar="ARCHITECTURE", help=f"such as {', '.join(ARCHITECTURES)} [these]"
    )
    parser.add_argument("--out", type=Path, help="folder for the cubins")
    options = parser.parse_args()
    print(f"{'kernel':16}{'architecture':14}{'registers':>10}{'shared':>9}{'stack':>7}{'spilled':>9}")
    for name in SOURCES:
        for architecture in options.architectures or ARCHITECTURES:
            cubin, usages = compile_source(name, architecture)
            for usage in usages:
                print(
                    f"{usage.kernel:16}{usage.architecture:14}{usage.registers:10}{usage.shared_bytes:9}"
                    f"{usage.stack_bytes:7}{usage.spill_bytes:9}"
                )
            if options.out is not None:
                options.out.mkdir(parents=True, exist_ok=True)
                (options.out / f"{name}.{architecture}.cubin").write_bytes(cubin)


if __name__ == "__main__":
    try:
        main()
    except DeviceError as error:
        sys.exit(f"stampede: {error}")
    except BrokenPipeError:  # of `| head`
        sys.exit(1)
