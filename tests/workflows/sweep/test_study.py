"""The folder of a study: made, gone on with, refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stampede import CheckpointError, ConfigError
from stampede.training.scaling import Rule
from stampede.workflows.recipe import Recipe, TrainRecipe
from stampede.workflows.sweep.grid import Point, Series
from stampede.workflows.sweep.study import Study, names_of

Begin = Callable[..., Study]


def test_a_study_is_read_as_it_was_written(begin_study: Begin) -> None:
    study = begin_study(fixed={"hidden": (16,), "epochs": 2}, clips="none,cowclip")

    again = Study.open(study.path)

    assert (again.grids, again.recipe, again.fingerprint) == (study.grids, study.recipe, study.fingerprint)
    assert again.points() == study.points()


def test_a_longer_list_adds_points(begin_study: Begin) -> None:
    before = begin_study().points()
    after = begin_study(batch_sizes="1024,8192,65536", resume=True).points()

    assert set(before) < set(after)
    assert {point.batch_size for point in set(after) - set(before)} == {65536}


def test_points_of_a_shorter_list_stay(begin_study: Begin) -> None:
    before = begin_study().points()

    assert begin_study(batch_sizes="8192", resume=True).points() == before


def test_a_run_that_has_ended_keeps_its_name(begin_study: Begin, write_run: Callable[..., None]) -> None:
    study = begin_study(rules="none", batch_sizes="1024", seeds="1")
    write_run(study, Point(Series("deepfm", Rule.NONE, "none"), 1024, 0), aucs=[0.7])

    study = begin_study(rules="linear,none", batch_sizes="1024", seeds="1", resume=True)

    assert set(names_of(study.points(), study.outcomes()).values()) == {"deepfm-none-none-b1024-s0"}


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"fixed": {"epochs": 3}}, "--epochs not given, now it is 3"),
        ({"recipe": Recipe(train=TrainRecipe(batch_size=512))}, "base batch of 1,024, not of 512"),
        ({"recipe": Recipe(train=TrainRecipe(l2=1.0))}, "other values of the recipe"),
    ],
)
def test_another_study_is_refused(begin_study: Begin, changes: dict[str, object], fault: str) -> None:
    begin_study()

    with pytest.raises(ConfigError, match=fault):
        begin_study(resume=True, **changes)


def test_threads_may_change(begin_study: Begin) -> None:
    begin_study(fixed={"threads": 1})

    assert begin_study(fixed={"threads": 2}, resume=True).fixed == {"threads": 2}


def test_what_lies_there_is_not_replaced_unasked(begin_study: Begin, tmp_path: Path) -> None:
    begin_study()

    with pytest.raises(CheckpointError, match="--resume"):
        begin_study()


def test_a_damaged_study_is_named(begin_study: Begin) -> None:
    study = begin_study()
    (study.path / "study.toml").write_text("dataset = 1")

    with pytest.raises(CheckpointError, match=r"study\.toml is damaged"):
        Study.open(study.path)
    with pytest.raises(CheckpointError, match="does not exist"):
        Study.open(study.path / "none")


def test_two_processes_do_not_work_on_one_study(begin_study: Begin) -> None:
    study = begin_study()

    with study.alone(), pytest.raises(CheckpointError, match="another process"), study.alone():
        pass
    with study.alone():
        pass


def test_a_damaged_outcome_is_named_with_the_mend(begin_study: Begin) -> None:
    study = begin_study()
    (study.path / "outcomes" / "run.json").write_text("{")

    with pytest.raises(CheckpointError, match=r"run\.json is damaged: remove it"):
        study.outcomes()
