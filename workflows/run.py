"""A run folder: everything that evaluation and prediction need, without the dataset.

RUN/  config.toml  metrics.jsonl  checkpoints/step-N/…  best -> …  vocab/*.parquet  encoder.json
"""

from __future__ import annotations

import os
import shutil
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import tomli_w
import torch
from pydantic import ValidationError

from stampede import CheckpointError
from stampede.pipeline.dataset import Dataset
from stampede.pipeline.encode import DatasetOrigin, Encoder
from stampede.pipeline.errors import first_line
from stampede.training.build import model_of
from stampede.training.checkpoint import BEST, load_best
from stampede.training.config import Device, TrainConfig
from stampede.training.device import resolve_device, set_threads
from stampede.training.models import CTRModel

CONFIG = "config.toml"


@dataclass(frozen=True)
class Run:
    """A run on disk: its configuration, its encoder and where its dataset lay."""

    path: Path
    config: TrainConfig
    encoder: Encoder
    origin: DatasetOrigin

    @classmethod
    def check_free(cls, path: Path, *, force: bool) -> None:
        """Raise unless a run may be made there: nothing is, or a run that ``force`` replaces.

        Raises
        ------
        CheckpointError
            Something is.
        """
        if not os.path.lexists(path):
            return
        if not force:
            if (path / CONFIG).is_file() and not os.path.lexists(path / BEST):
                raise CheckpointError(
                    f"{path} is an unfinished run: go on with it by --resume, replace it with --force, or "
                    "choose another --out"
                )
            raise CheckpointError(
                f"{path} exists: choose another --out, go on with it by --resume, or replace it with --force"
            )
        if not (path / CONFIG).is_file() and (not path.is_dir() or any(path.iterdir())):
            raise CheckpointError(
                f"{path} is not a run, so --force does not replace it: choose another --out"
            )

    @classmethod
    def create(cls, path: Path, config: TrainConfig, dataset: Dataset, *, force: bool) -> Self:
        """Make the folder of a new run.

        Raises
        ------
        CheckpointError
            As :meth:`check_free`, or it cannot be written.
        """
        cls.check_free(path, force=force)
        encoder = Encoder.of_dataset(dataset)
        origin = DatasetOrigin(path=str(dataset.path.absolute()), fingerprint=dataset.fingerprint)
        place = path.resolve() if path.exists() else path.absolute()
        unfinished = place.with_name(f".{place.name}.unfinished")
        try:
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            (unfinished / CONFIG).write_text(_toml_of(config), "utf-8")
            encoder.save(unfinished, origin)
            if place.exists():
                shutil.rmtree(place)
            unfinished.rename(place)
        except OSError as error:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise CheckpointError(f"cannot write {path}: {error.strerror}") from error
        return cls(path, config, encoder, origin)

    def with_config(self, config: TrainConfig) -> Run:
        """Write another configuration of the run, and return the run with it.

        Raises
        ------
        CheckpointError
            It cannot be written.
        """
        new = self.path / f".{CONFIG}.new"
        try:
            new.write_text(_toml_of(config), "utf-8")
            new.replace(self.path / CONFIG)
        except OSError as error:
            raise CheckpointError(f"cannot write {self.path / CONFIG}: {error.strerror}") from error
        return replace(self, config=config)

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open a run.

        Raises
        ------
        CheckpointError
            The folder is no run, or is damaged.
        """
        folder = Path(path)
        file = folder / CONFIG
        try:
            config = TrainConfig(**tomllib.loads(file.read_text("utf-8")))
        except FileNotFoundError as error:
            missing = "has no config.toml" if folder.is_dir() else "does not exist"
            raise CheckpointError(f"{folder} {missing}: make a run with 'stampede train'") from error
        except ValidationError as error:
            raise CheckpointError.of_validation(error, f"{file} is damaged") from error
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise CheckpointError(f"{file} is damaged: {first_line(error)}") from error
        encoder, origin = Encoder.load(folder)
        return cls(folder, config, encoder, origin)

    def use(self, device: Device | None, threads: int | None) -> torch.device:
        """Set this process up to compute as the run did, except for what is given.

        Raises
        ------
        DeviceError
            The device that is asked for, or that the run was made for, is not there.
        """
        set_threads(self.config.threads if threads is None else threads)
        return resolve_device(self.config.device if device is None else device)

    def load_model(self, device: torch.device) -> CTRModel:
        """Return the model with the weights of the best epoch.

        Raises
        ------
        CheckpointError
            The run has no finished epoch, or its checkpoint is damaged.
        """
        sizes = {name: vocabulary.size for name, vocabulary in self.encoder.vocabularies.items()}
        model = model_of(self.config, sizes, n_dense=len(self.encoder.dense_columns))
        load_best(self.path, model)
        return model.to(device).eval()

    def open_dataset(self) -> Dataset:
        """Open the dataset of the run where it lay.

        Raises
        ------
        CheckpointError
            Another dataset lies there now.
        """
        if not Path(self.origin.path).exists():
            raise CheckpointError(
                f"the dataset of {self.path} is no longer at {self.origin.path}: name its place with --data"
            )
        dataset = Dataset.open(self.origin.path)
        if not self.was_trained_on(dataset):
            raise CheckpointError(
                f"{dataset.path} is not the dataset that {self.path} was trained on (its manifest changed): "
                "name the right one with --data, or train again"
            )
        return dataset

    def was_trained_on(self, dataset: Dataset) -> bool:
        """Whether a dataset is the run's, also where splits were added to it since."""
        return self.origin.fingerprint in (dataset.fingerprint, *dataset.manifest.earlier)

    def check_dataset(self, dataset: Dataset) -> None:
        """Raise unless a dataset has the vocabularies and dense statistics that the run was trained with.

        Raises
        ------
        CheckpointError
            Names what differs.
        """
        other = Encoder.of_dataset(dataset)
        mend = "score its raw rows with 'stampede predict'"
        if list(other.vocabularies) != list(self.encoder.vocabularies):
            raise CheckpointError(f"{dataset.path} has other fields than {self.path}: {mend}")
        for name, vocabulary in other.vocabularies.items():
            mine = self.encoder.vocabularies[name]
            if mine.size != vocabulary.size or not mine.values.equals(vocabulary.values):
                raise CheckpointError(
                    f"{dataset.path} has another vocabulary of {name} than {self.path}: {mend}"
                )
        if not other.encodes_as(self.encoder):
            raise CheckpointError(f"{dataset.path} encodes rows in another way than {self.path}: {mend}")


def _toml_of(config: TrainConfig) -> str:
    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))
