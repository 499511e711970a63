"""The training step without polars and pydantic: its modules name them, and a step never calls them."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType


def stand_in_for_missing() -> list[str]:
    """Make ``stampede.training.step`` and its like importable; give the packages that were missing."""
    missing = [name for name in ("polars", "pydantic") if not is_importable(name)]
    if not missing:
        return missing
    if "polars" in missing:
        sys.modules["polars"] = ModuleType("polars")
    dataset = ModuleType("stampede.pipeline.dataset")
    dataset.LABEL = "label"  # type: ignore[attr-defined]
    config = ModuleType("stampede.training.config")
    config.Precision = str  # type: ignore[attr-defined]
    sys.modules |= {"stampede.pipeline.dataset": dataset, "stampede.training.config": config}
    return missing


def is_importable(name: str) -> bool:
    """Whether a module is there and can be imported."""
    try:
        importlib.import_module(name)
    except Exception:  # compiled packages fail in many ways
        return False
    return True
