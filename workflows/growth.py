"""A run after the vocabularies of its dataset grew: evaluating it there, and training on from it."""

from __future__ import annotations

from pathlib import Path

from stampede import CheckpointError
from stampede.pipeline.dataset import Dataset
from stampede.pipeline.encode import Encoder
from stampede.pipeline.grow import are_grown_from, ids_before
from stampede.training.checkpoint import BEST
from stampede.training.grow import grow_into
from stampede.training.models import CTRModel
from stampede.training.optim import TableOptimizer
from stampede.training.rowgroups import IdTables
from stampede.workflows.run import Run


def dataset_of(run: Run, data: Path | None) -> tuple[Dataset, IdTables | None]:
    """Open a dataset whose rows a run can score, and say by which ids.

    Parameters
    ----------
    data:
        Another dataset with the run's vocabularies, or with such as are grown from them; None takes the run's
        own, where it lay.

    Returns
    -------
    tuple
        The dataset, and what :func:`ids_of_run` gives for it.

    Raises
    ------
    CheckpointError
        The run cannot read it; names what differs.
    """
    dataset = run.open_dataset() if data is None else Dataset.open(data)
    ids = ids_of_run(run, dataset)
    if data is not None and ids is None:
        run.check_dataset(dataset)
    return dataset, ids


def ids_of_run(run: Run, dataset: Dataset) -> IdTables | None:
    """Return for each field the ids that a run has for those of a dataset that grew since it was trained.

    Values that the run has not seen get the id of unseen ones, or that of their hash bucket: what its own
    vocabulary gives them, and so the scores that ``predict`` gives.

    Returns
    -------
    list
        int32 [size of the field in the dataset] each; None where the dataset's vocabularies did not grow, or
        are not grown from those of the run.
    """
    if not dataset.manifest.growths:
        return None
    encoder, mine = Encoder.of_dataset(dataset), run.encoder.vocabularies
    if not are_grown_from(encoder.vocabularies, mine) or not encoder.encodes_as(run.encoder):
        return None
    return ids_before(encoder.vocabularies, mine)


def check_init_from(run: Run, dataset: Dataset) -> None:
    """Raise unless training on a dataset can begin with a run: its ids mean there what they meant in the run.

    Raises
    ------
    CheckpointError
        Names what differs: fields, a vocabulary, or how rows are encoded.
    """
    encoder, old = Encoder.of_dataset(dataset), run.encoder.vocabularies
    if list(encoder.vocabularies) != list(old):
        raise CheckpointError(f"{dataset.path} has other fields than {run.path}: it cannot begin with it")
    for name, vocabulary in encoder.vocabularies.items():
        if not vocabulary.is_grown_from(old[name]):
            raise CheckpointError(
                f"{dataset.path} has another vocabulary of {name} than {run.path}: take the dataset of the "
                "run, to which later files were added by 'stampede prepare --append NAME --grow-vocab'"
            )
    if not encoder.encodes_as(run.encoder):
        raise CheckpointError(
            f"{dataset.path} encodes rows in another way than {run.path} (dense columns or statistics): "
            "take the dataset of the run"
        )


def init_from(run: Run, dataset: Dataset, model: CTRModel, optimizer: TableOptimizer | None) -> None:
    """Begin training on a dataset with the best epoch of a run, whose vocabularies may have grown since.

    Parameters
    ----------
    model:
        Of the dataset's sizes, with the initial weights that new ids are to have; it needs the run's shape.
    optimizer:
        Over the model's parameters, before its first step; None takes the weights alone.

    Raises
    ------
    CheckpointError
        The dataset or the model is not one that can begin with it (:func:`check_init_from`,
        :func:`stampede.training.grow.grow_into`).
    """
    check_init_from(run, dataset)
    old = [vocabulary.size for vocabulary in run.encoder.vocabularies.values()]
    grow_into(run.path / BEST, model, optimizer, old_sizes=old, new_sizes=list(dataset.sizes.values()))
