"""Recipes: what the paper published at each batch size, and what a user's flags change."""

from __future__ import annotations

from pathlib import Path

import pytest

from stampede import ConfigError
from stampede.training.scaling import Rule
from stampede.workflows.recipe import RECIPES, Recipe, TrainRecipe, configure, scale_recipe

# The published settings (arXiv 2204.06240 and its program): batch in K, rate x 1e-4, L2 x 1e-5, zeta.
CRITEO = [
    (1, 8, 1, 1e-5), (2, 11.31, 2, 1e-5), (4, 16, 4, 1e-5), (8, 22.62, 8, 1e-5),
    (16, 32, 16, 1e-5), (32, 45.25, 32, 1e-5), (64, 64, 64, 1e-5), (128, 90.50, 128, 1e-5),
]  # fmt: skip
AVAZU = [
    (1, 1, 1, 1e-3), (2, 1.41, 2, 1e-3), (4, 2, 4, 1e-4), (8, 2.83, 8, 1e-4),
    (16, 4, 16, 1e-4), (32, 5.66, 32, 1e-4), (64, 8, 64, 1e-4), (128, 16, 96, 1e-4),
]  # fmt: skip


@pytest.mark.parametrize(
    ("recipe", "thousands", "rate", "l2", "zeta"),
    [("criteo", *row) for row in CRITEO] + [("avazu", *row) for row in AVAZU],
)
def test_recipes_give_the_published_settings(
    recipe: str, thousands: int, rate: float, l2: float, zeta: float
) -> None:
    scaled = scale_recipe(Recipe.named(recipe).train, batch_size=thousands * 1024)

    assert scaled.learning_rate == pytest.approx(rate * 1e-4, rel=3e-3)
    assert scaled.l2 == pytest.approx(l2 * 1e-5)
    assert scaled.zeta == zeta
    assert scaled.embedding_learning_rate == 1e-4
    assert scaled.warmup_epochs == 1


@pytest.mark.parametrize(
    ("batch_size", "exception"),
    [(1024, True), (4096, False), (65536, False), (131072, True), (262144, False)],
)
def test_an_exception_is_noted_where_it_applies(batch_size: int, exception: bool) -> None:
    assert bool(scale_recipe(Recipe.named("avazu").train, batch_size=batch_size).exceptions) == exception


def test_an_exception_that_a_flag_replaces_is_not_announced() -> None:
    given = {"batch_size": 131072, "learning_rate": 1e-3}

    config, exceptions = configure(Recipe.named("avazu").train, given)

    assert config.learning_rate == 1e-3
    assert set(exceptions) == {"l2"}


def test_exceptions_belong_to_the_rule_they_were_published_with() -> None:
    scaled = scale_recipe(Recipe.named("avazu").train, batch_size=131072, rule=Rule.LINEAR)

    assert not scaled.exceptions
    assert scaled.learning_rate == pytest.approx(1e-4 * 128)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_makes_a_config(name: str) -> None:
    config, _ = configure(Recipe.named(name).train, {})

    assert config.batch_size == 1024
    assert (config.optimizer, config.clip) == ("cowclip", "cowclip")


def test_the_papers_recipes_do_what_the_paper_did() -> None:
    for name, test_fraction in (("criteo", 0.1), ("avazu", 0.2)):
        prepare = Recipe.named(name).prepare

        assert (prepare.min_count, prepare.dense, prepare.split) == (1, "minmax", "random")
        assert (prepare.valid_fraction, prepare.test_fraction) == (0, test_fraction)
        assert (Recipe.named(name).train.epochs, Recipe.named(name).train.patience) == (10, 0)


def test_a_given_value_is_taken_as_it_is() -> None:
    config, _ = configure(TrainRecipe(), {"batch_size": 4096, "l2": 3e-6})

    assert config.l2 == 3e-6
    assert config.learning_rate == pytest.approx(16e-4)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ("cowclip", "cowclip")),
        ({"clip": "none"}, ("adam", "none")),
        ({"optimizer": "adam"}, ("adam", "none")),
        ({"optimizer": "adam", "clip": "cowclip"}, ("cowclip", "cowclip")),
        ({"optimizer": "cowclip", "clip": "cowclip"}, ("cowclip", "cowclip")),
    ],
)
def test_cowclip_is_adam_with_the_clip(given: dict[str, str], expected: tuple[str, str]) -> None:
    config, _ = configure(TrainRecipe(), given)

    assert (config.optimizer, config.clip) == expected


def test_a_contradictory_pair_is_an_error() -> None:
    with pytest.raises(ConfigError, match="--optimizer cowclip with --clip none"):
        configure(TrainRecipe(), {"optimizer": "cowclip", "clip": "none"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[train]\nbatch = 3", "key train.batch"),
        ("[train]\nl2 = 'a lot'", "key train.l2"),
        ("train = [", "not a TOML file"),
    ],
)
def test_a_bad_recipe_file_names_its_fault(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)

    with pytest.raises(ConfigError, match=message):
        Recipe.named(str(file))


def test_a_recipe_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[prepare]\nmin_count = 9\n[train]\nbatch_size = 512\nl2 = 2e-5\n")

    recipe = Recipe.named(str(file))

    assert recipe.prepare.min_count == 9
    assert scale_recipe(recipe.train, batch_size=1024).l2 == pytest.approx(4e-5)
