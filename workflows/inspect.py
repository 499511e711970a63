"""``stampede inspect``: what a dataset holds."""

from __future__ import annotations

from pathlib import Path

from stampede.pipeline.dataset import Dataset
from stampede.pipeline.inspect import FieldSummary, summarise_fields


def run_inspect(path: Path) -> tuple[Dataset, list[FieldSummary]]:
    """Open a dataset and summarise its fields.

    Raises
    ------
    DatasetError
        The folder is no dataset, or is damaged.
    """
    dataset = Dataset.open(path)
    return dataset, summarise_fields(dataset)
