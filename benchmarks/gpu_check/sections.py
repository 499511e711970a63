"""The sections by name."""

from __future__ import annotations

import importlib
from typing import Protocol, cast

from benchmarks.gpu_check.options import Options
from benchmarks.gpu_check.record import Part
from benchmarks.gpu_check.standins import stand_in_for_missing

MODULES = {
    "environment": "environment",
    "kernels": "kernels",
    "step": "step",
    "epoch": "epoch",
    "train": "commands",
    "prepare": "engines",
}

WITHOUT_DATASETS = ("kernels", "step", "epoch")

LIMITS = {
    "environment": 60.0,
    "kernels": 120.0,
    "step": 150.0,
    "epoch": 90.0,
    "train": 110.0,
    "prepare": 60.0,
}
"""Seconds. Together they may pass the time of everything: a section seldom takes up its own."""


class Section(Protocol):
    """What the module of a section has."""

    def missing(self, options: Options) -> str | None:
        """Say why the section cannot run here; None where it can."""

    def parts(self, options: Options) -> list[Part]:
        """Give its parts, the most wanted first."""


def section_named(name: str) -> Section:
    """Import a section, and what it needs with it; a name that is none of ours is that of a module."""
    if name in WITHOUT_DATASETS:
        stand_in_for_missing()
    module = f"benchmarks.gpu_check.{MODULES[name]}" if name in MODULES else name
    return cast(Section, importlib.import_module(module))
