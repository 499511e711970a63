"""What a study asks for: lists, points, values, coinciding runs."""

from __future__ import annotations

from typing import Any

import pytest

from stampede import ConfigError
from stampede.training.scaling import Rule
from stampede.workflows.recipe import TrainRecipe
from stampede.workflows.sweep.grid import Grid, Point, Series, configure_points, identity
from stampede.workflows.sweep.study import names_of

RECIPE = TrainRecipe()  # the paper's values at a base batch of 1024


def grid(**changes: Any) -> Grid:
    asked = {"models": "deepfm", "batch_sizes": "1024", "rules": "cowclip", "clips": None, "seeds": "1"}
    return Grid.parse(**asked | changes)


def point(rule: str, clip: str, *, batch_size: int = 1024, model: str = "deepfm", seed: int = 0) -> Point:
    return Point(Series(model, Rule(rule), clip), batch_size, seed)


def test_seeds_are_a_count_or_a_list() -> None:
    assert grid(seeds="3").seeds == (0, 1, 2)
    assert grid(seeds="0,5,7").seeds == (0, 5, 7)
    assert grid(seeds="5,").seeds == (5,)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"seeds": "0"}, "--seeds"),
        ({"batch_sizes": "1024,x"}, "--batch-sizes"),
        ({"batch_sizes": "0"}, "--batch-sizes"),
        ({"models": "deepfm,gpt"}, "'gpt' is none of"),
        ({"rules": "cowclip,square"}, "'square' is none of"),
        ({"clips": ","}, "the list is empty"),
    ],
)
def test_lists_without_meaning_are_refused(changes: dict[str, str], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        grid(**changes)


def test_a_rule_goes_with_its_natural_clip() -> None:
    series = grid(rules="cowclip,linear").series()

    assert [(one.rule, one.clip, one.label) for one in series] == [
        ("cowclip", "cowclip", "cowclip"),
        ("linear", "none", "linear"),
    ]


def test_clips_make_the_full_product() -> None:
    series = grid(rules="cowclip,linear", clips="cowclip,none").series()

    assert [one.label for one in series] == [
        "cowclip",
        "cowclip, clip none",
        "linear, clip cowclip",
        "linear",
    ]


def test_seeds_come_one_after_the_other() -> None:
    points = grid(batch_sizes="2048,1024", seeds="2").points()

    assert [(one.batch_size, one.seed) for one in points] == [(1024, 0), (2048, 0), (1024, 1), (2048, 1)]


def test_the_values_of_a_point_are_what_the_rule_gives() -> None:
    asked = point("linear", "none", batch_size=4096, seed=7)

    config = configure_points([asked], RECIPE, {"hidden": (16,)})[asked]

    assert (config.learning_rate, config.embedding_learning_rate, config.l2) == (4 * 8e-4, 4 * 1e-4, 1e-5)
    assert (config.optimizer, config.clip, config.seed, config.hidden) == ("adam", "none", 7, (16,))


def test_rules_coincide_at_the_base_batch_where_the_clip_is_the_same() -> None:
    points = grid(batch_sizes="1024,2048", rules="cowclip,linear,none,sqrt").points()
    configs = configure_points(points, RECIPE, {})

    names = names_of(configs, {})

    at_base = {one.series.rule: name for one, name in names.items() if one.batch_size == 1024}
    assert at_base == {
        "cowclip": "deepfm-cowclip-cowclip-b1024-s0",
        "linear": "deepfm-linear-none-b1024-s0",
        "none": "deepfm-linear-none-b1024-s0",
        "sqrt": "deepfm-linear-none-b1024-s0",
    }
    assert len(set(names.values())) == 2 + 4


def test_threads_do_not_make_another_run() -> None:
    asked = point("none", "none")

    one, other = (configure_points([asked], RECIPE, {"threads": threads})[asked] for threads in (1, 2))

    assert identity(one) == identity(other)
    assert identity(one) != identity(configure_points([asked], RECIPE, {"epochs": 3})[asked])


def test_options_of_one_model_are_held_fixed_for_that_model_alone() -> None:
    points = grid(models="deepfm,dcn").points()

    configs = configure_points(points, RECIPE, {"cross_layers": 5})

    assert [config.cross_layers for config in configs.values()] == [3, 5]
    with pytest.raises(ConfigError, match="--cross-layers is of no model"):
        configure_points(grid().points(), RECIPE, {"cross_layers": 5})


def test_clip_norm_is_of_the_clips_that_have_one() -> None:
    points = grid(rules="none", clips="none,global").points()

    configs = configure_points(points, RECIPE, {"clip_norm": 2.0})

    assert [config.clip_norm for config in configs.values()] == [None, 2.0]
    with pytest.raises(ConfigError, match="--clip-norm is of the clips"):
        configure_points(grid().points(), RECIPE, {"clip_norm": 2.0})
