"""``stampede doctor``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from stampede.cli.common import Debug, Json, print_json

if TYPE_CHECKING:
    from stampede.workflows.doctor import Choice, Report

GIB = 2**30


def doctor(json: Json = False, debug: Debug = False) -> None:
    """Say what this machine can run, and why not.

    Example: stampede doctor
    """
    from dataclasses import asdict

    from stampede.workflows.doctor import run_doctor

    report = run_doctor()
    if json:
        print_json(asdict(report))
        return
    _print_machine(report)
    typer.echo()
    _print_choices(report)
    if report.packages:
        typer.echo()
        _print_packages(report)
    for problem in report.problems:
        typer.echo(f"could not be found out: {problem}")


def _print_machine(report: Report) -> None:
    versions, machine = report.versions, report.machine
    if versions.torch is None:
        torch = "not installed"
    elif versions.torch_cuda is None:
        torch = f"{versions.torch} (CPU build)"
    else:
        torch = f"{versions.torch} (CUDA {versions.torch_cuda} build)"
    rows = [
        ("stampede", versions.stampede),
        ("Python", f"{versions.python}, {machine.system}"),
        ("torch", torch),
        ("polars", versions.polars or "not installed"),
        ("cores", "unknown" if machine.cores is None else f"{machine.cores:g}"),
        ("memory", _gib(machine.memory_bytes)),
        ("free disk", f"{_gib(machine.disk_free_bytes)} in {machine.folder}"),
    ]
    if report.driver is not None:
        cuda = "" if report.driver.cuda is None else f", runs CUDA up to {report.driver.cuda}"
        rows.append(("NVIDIA driver", f"{report.driver.version or 'of unknown version'}{cuda}"))
    _print_columns(rows)


def _print_choices(report: Report) -> None:
    rows = [
        *(("prepare --engine", *_choice(engine, "the default")) for engine in report.engines),
        *(("train --device", *_choice(device, "what auto takes")) for device in report.devices),
    ]
    for gpu in report.gpus:
        free = f"{_gib(gpu.memory_bytes)}, {_gib(gpu.memory_free_bytes)} free, capability {gpu.capability}"
        rows.append((f"GPU {gpu.index}", gpu.name, "usable" if gpu.usable else "no", gpu.reason or free))
    _print_columns(rows)
    if len(report.gpus) > 1:
        typer.echo("training uses one GPU, the first; CUDA_VISIBLE_DEVICES chooses another")


def _choice(choice: Choice, default: str) -> tuple[str, str, str]:
    notes = [choice.reason or "", default if choice.default else ""]
    return choice.name, "usable" if choice.usable else "no", "; ".join(filter(None, notes))


_CONSTRAINTS = {"cuda": "constraints.txt", "gpu": "constraints-gpu.txt"}
"""Extra -> the file that pins it."""


def _print_packages(report: Report) -> None:
    serves = any(package.needed_by for package in report.packages)
    typer.echo("optional packages" if serves else "optional packages (no command of this version needs them)")
    _print_columns(
        [
            (
                f"  {package.name}",
                f"[{package.extra}]",
                package.version
                or f"not installed: pip install -c {_CONSTRAINTS[package.extra]} '.[{package.extra}]'",
                f"for {package.needed_by}" if package.needed_by else "",
            )
            for package in report.packages
        ]
    )


def _print_columns(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())


def _gib(size: int | None) -> str:
    return "unknown" if size is None else f"{size / GIB:.1f} GiB"
