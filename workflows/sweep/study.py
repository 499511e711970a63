"""A study on disk: what was asked for, and what became of each run.

STUDY/  study.toml  recipe.toml  runs/NAME/…  outcomes/NAME.json  logs/NAME.log  points.csv  study.html
"""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import tomli_w

from stampede import CheckpointError, ConfigError
from stampede.pipeline.dataset import Dataset
from stampede.pipeline.errors import first_line
from stampede.training.config import TrainConfig
from stampede.training.scaling import Rule
from stampede.workflows.files import hold_folder
from stampede.workflows.recipe import Recipe
from stampede.workflows.sweep.grid import NOT_OF_THE_RESULT, Grid, Point, configure_points, identity

STUDY = "study.toml"
RECIPE = "recipe.toml"
FORMAT_VERSION = 1

Status = Literal["finished", "diverged", "failed"]


@dataclass(frozen=True)
class Outcome:
    """What became of a run.

    Attributes
    ----------
    identity:
        What it learnt with (:func:`stampede.workflows.sweep.grid.identity`).
    reason:
        Why it did not finish.
    epochs, steps, samples_per_second, seconds:
        Of the run, as :class:`stampede.training.trainer.TrainResult`; None where it did not finish.
    """

    name: str
    identity: str
    status: Status
    reason: str | None = None
    epochs: int | None = None
    steps: int | None = None
    samples_per_second: float | None = None
    seconds: float | None = None

    @property
    def is_settled(self) -> bool:
        """Whether the same run would come to the same: it finished, or diverged."""
        return self.status != "failed"


@dataclass(frozen=True)
class Study:
    """A study: its dataset, its recipe at the base batch, the values held fixed, and the grids asked for.

    Attributes
    ----------
    recipe_name:
        As the user called it; the recipe itself stands in the study's recipe.toml.
    """

    path: Path
    dataset: str
    fingerprint: str
    recipe_name: str
    recipe: Recipe
    fixed: dict[str, Any]
    grids: tuple[Grid, ...]

    @property
    def base_batch_size(self) -> int:
        """The batch size from which the rules scale."""
        return self.recipe.train.batch_size

    @classmethod
    def begin(
        cls,
        path: Path,
        dataset: Dataset,
        *,
        recipe_name: str,
        recipe: Recipe,
        fixed: Mapping[str, Any],
        grid: Grid,
        resume: bool,
        force: bool,
    ) -> Self:
        """Make the folder of a study, or go on with the one that lies there.

        Raises
        ------
        CheckpointError
            Something lies there and neither ``resume`` nor ``force`` is set, or it is no study.
        ConfigError
            The study there has another dataset, recipe, base batch or other values held fixed.
        """
        fresh = cls(
            path, str(dataset.path.absolute()), dataset.fingerprint, recipe_name, recipe, dict(fixed), (grid,)
        )
        if path.exists() and not resume:
            if not force:
                raise CheckpointError(
                    f"{path} exists: go on with --resume, replace it with --force, or choose another --out"
                )
            if not (path / STUDY).is_file() and (not path.is_dir() or any(path.iterdir())):
                raise CheckpointError(
                    f"{path} is not a study, so --force does not replace it: choose another --out"
                )
            with hold_folder(path):
                shutil.rmtree(path)
        study = fresh
        if resume and path.exists():
            study = cls.open(path)._extended(fresh, earlier=dataset.manifest.earlier)
        study._save()
        return study

    @classmethod
    def open(cls, path: Path) -> Self:
        """Read a study.

        Raises
        ------
        CheckpointError
            The folder is no study, or is damaged.
        """
        file = path / STUDY
        try:
            document = tomllib.loads(file.read_text("utf-8"))
            return cls(
                path=path,
                dataset=document["dataset"],
                fingerprint=document["fingerprint"],
                recipe_name=document["recipe"],
                recipe=Recipe.named(str(path / RECIPE)),
                fixed=document["fixed"],
                grids=tuple(_grid_of(grid) for grid in document["grid"]),
            )
        except FileNotFoundError as error:
            missing = "has no study.toml" if path.is_dir() else "does not exist"
            raise CheckpointError(f"{path} {missing}: make a study with 'stampede sweep'") from error
        except (
            OSError,
            UnicodeDecodeError,
            tomllib.TOMLDecodeError,
            KeyError,
            ValueError,
            TypeError,
        ) as error:
            raise CheckpointError(f"{file} is damaged: {error}") from error

    def points(self) -> dict[Point, TrainConfig]:
        """Return all points that were ever asked for, and their values."""
        points = dict.fromkeys(point for grid in self.grids for point in grid.points())
        return configure_points(points, self.recipe.train, self.fixed)

    def outcomes(self) -> dict[str, Outcome]:
        """Return what became of the runs that have ended, by identity.

        Raises
        ------
        CheckpointError
            A file is damaged.
        """
        found = (_read_outcome(file) for file in sorted((self.path / "outcomes").glob("*.json")))
        return {outcome.identity: outcome for outcome in found}

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the study for this process.

        Raises
        ------
        CheckpointError
            Another one works on it.
        """
        with hold_folder(self.path):
            yield

    def keep(self, outcome: Outcome) -> None:
        """Write what became of a run.

        Raises
        ------
        CheckpointError
            It cannot be written.
        """
        file = self.path / "outcomes" / f"{outcome.name}.json"
        try:
            _write(file, json.dumps(asdict(outcome), indent=1) + "\n")
        except OSError as error:
            raise CheckpointError(f"cannot write {file}: {error.strerror}") from error

    def forget(self, name: str) -> None:
        """Remove what became of a run that is to be made again."""
        (self.path / "outcomes" / f"{name}.json").unlink(missing_ok=True)

    def run_folder(self, name: str) -> Path:
        """Return where a run lies."""
        return self.path / "runs" / name

    def log_file(self, name: str) -> Path:
        """Return where a run writes what it would tell a user."""
        return self.path / "logs" / f"{name}.log"

    def _extended(self, asked: Study, *, earlier: tuple[str, ...]) -> Self:
        """Return this study with another grid, if everything else is the same."""
        mend = "choose another --out for another study"
        if self.fingerprint not in (asked.fingerprint, *earlier):
            raise ConfigError(
                f"{self.path} is a study of another dataset than {asked.dataset} "
                f"(it was of {self.dataset}): {mend}"
            )
        if self.base_batch_size != asked.base_batch_size:
            raise ConfigError(
                f"{self.path} scales from a base batch of {self.base_batch_size:,}, "
                f"not of {asked.base_batch_size:,}: {mend}"
            )
        if self.recipe != asked.recipe:
            raise ConfigError(
                f"{self.path} was made with other values of the recipe {self.recipe_name}: {mend}"
            )
        before, now = (
            {name: _plain(value) for name, value in fixed.items() if name not in NOT_OF_THE_RESULT}
            for fixed in (self.fixed, asked.fixed)
        )
        for name in sorted({**before, **now}):
            if before.get(name) != now.get(name):
                flag = "--" + name.replace("_", "-")
                raise ConfigError(
                    f"{self.path} was made with {flag} {before.get(name, 'not given')}, "
                    f"now it is {now.get(name, 'not given')}: {mend}"
                )
        grids = dict.fromkeys((*self.grids, *asked.grids))
        return replace(self, dataset=asked.dataset, fixed=asked.fixed, grids=tuple(grids))

    def _save(self) -> None:
        document = {
            "format_version": FORMAT_VERSION,
            "dataset": self.dataset,
            "fingerprint": self.fingerprint,
            "recipe": self.recipe_name,
            "base_batch_size": self.base_batch_size,
            "fixed": self.fixed,
            "grid": [_document_of(grid) for grid in self.grids],
        }
        try:
            for folder in ("runs", "outcomes", "logs"):
                (self.path / folder).mkdir(parents=True, exist_ok=True)
            _write(self.path / RECIPE, tomli_w.dumps(self.recipe.model_dump(mode="json", exclude_none=True)))
            _write(self.path / STUDY, tomli_w.dumps(document))
        except OSError as error:
            raise CheckpointError(f"cannot write {self.path}: {error.strerror}") from error


def names_of(points: Mapping[Point, TrainConfig], outcomes: Mapping[str, Outcome]) -> dict[Point, str]:
    """Return the run of each point: points with the same values share one.

    A run that has ended keeps its name; else the first of the points gives it.
    """
    names = {key: outcome.name for key, outcome in outcomes.items()}
    return {point: names.setdefault(identity(config), point.name) for point, config in points.items()}


def _document_of(grid: Grid) -> dict[str, Any]:
    values = {name: list(value) for name, value in asdict(grid).items() if value is not None}
    return values | {"rules": [str(rule) for rule in grid.rules]}


def _grid_of(document: dict[str, Any]) -> Grid:
    return Grid(
        models=tuple(document["models"]),
        batch_sizes=tuple(document["batch_sizes"]),
        rules=tuple(Rule(rule) for rule in document["rules"]),
        clips=tuple(document["clips"]) if "clips" in document else None,
        seeds=tuple(document["seeds"]),
    )


def _read_outcome(file: Path) -> Outcome:
    try:
        return Outcome(**json.loads(file.read_text("utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(
            f"{file} is damaged: remove it, and --resume trains that run again ({first_line(error)})"
        ) from error


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _write(file: Path, text: str) -> None:
    """Write a small file whole or not at all."""
    unfinished = file.with_name(f".{file.name}.unfinished")
    unfinished.write_text(text, "utf-8")
    unfinished.replace(file)
