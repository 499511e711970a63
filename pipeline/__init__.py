"""Raw click logs -> a frequency-annotated dataset.

The data flows one way: ``sources`` -> ``scan`` -> ``rows`` -> ``spool`` -> ``split`` -> ``vocabulary`` and
``dense`` -> ``encode`` -> ``dataset``; :mod:`stampede.pipeline.plan` is the plan that joins them. From the
spool on an engine computes (:mod:`stampede.pipeline.engine`), and each gives the same dataset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if __name__ != "stampede.pipeline":
    raise ImportError("import stampede.pipeline, not pipeline")

if TYPE_CHECKING:
    from stampede.pipeline.append import append_split
    from stampede.pipeline.dataset import Dataset, DenseMode, SplitRule
    from stampede.pipeline.encode import Encoder
    from stampede.pipeline.options import PrepareOptions
    from stampede.pipeline.plan import prepare
    from stampede.pipeline.schema import Schema

__all__ = [
    "Dataset",
    "DenseMode",
    "Encoder",
    "PrepareOptions",
    "Schema",
    "SplitRule",
    "append_split",
    "prepare",
]

_HOMES = {
    "append_split": "append",
    "Dataset": "dataset",
    "DenseMode": "dataset",
    "SplitRule": "dataset",
    "Encoder": "encode",
    "PrepareOptions": "options",
    "prepare": "plan",
    "Schema": "schema",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: the plan is not needed to open a dataset."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
