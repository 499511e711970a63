"""``stampede evaluate``: a run's best epoch on a split of its dataset."""

from __future__ import annotations

from pathlib import Path

from stampede.pipeline.dataset import Dataset, Split
from stampede.training.device import resolve_device
from stampede.training.loader import DeviceLoader
from stampede.training.metrics import Metrics
from stampede.training.trainer import EVALUATION_BATCH, evaluate
from stampede.workflows.run import Run
from stampede.workflows.train import set_threads


def run_evaluate(run_path: Path, *, data: Path | None, split: Split) -> Metrics:
    """Evaluate the best epoch of a run, exactly.

    Parameters
    ----------
    data:
        Another dataset with the run's vocabularies; None takes the run's own, where it lay.

    Raises
    ------
    CheckpointError
        The run is damaged, or the dataset is not one that it can read.
    DatasetError
        The dataset is missing, damaged or without that split.
    """
    run = Run.open(run_path)
    if data is None:
        dataset = run.open_dataset()
    else:
        dataset = Dataset.open(data)
        run.check_dataset(dataset)
    set_threads(run.config)
    device = resolve_device(run.config.device)
    loader = DeviceLoader(dataset, split, batch_size=EVALUATION_BATCH, device=device)
    return evaluate(run.load_model(device), loader)
