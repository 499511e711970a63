"""``stampede evaluate``: a run's best epoch on a split of its dataset."""

from __future__ import annotations

from pathlib import Path

from stampede.pipeline.dataset import Split
from stampede.training.config import Device
from stampede.training.evaluation import EVALUATION_BATCH, evaluate
from stampede.training.metrics import Metrics
from stampede.training.resident import DeviceLoader
from stampede.workflows.growth import dataset_of
from stampede.workflows.run import Run


def run_evaluate(
    run_path: Path,
    *,
    data: Path | None,
    split: Split,
    device: Device | None = None,
    threads: int | None = None,
) -> Metrics:
    """Evaluate the best epoch of a run, exactly.

    Parameters
    ----------
    data:
        Another dataset with the run's vocabularies; None takes the run's own, where it lay. Where they grew
        since, the values that were added count as unseen, as they are to the run.
    device, threads:
        Where to compute; None as the run did, which repeats its metrics to the last digit.

    Raises
    ------
    CheckpointError
        The run is damaged, or the dataset is not one that it can read.
    DatasetError
        The dataset is missing, damaged or without that split.
    """
    run = Run.open(run_path)
    dataset, ids = dataset_of(run, data)
    place = run.use(device, threads)
    loader = DeviceLoader(dataset, split, batch_size=EVALUATION_BATCH, device=place, ids=ids)
    return evaluate(run.load_model(place), loader)
