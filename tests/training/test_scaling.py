import math

import pytest

from stampede import ConfigError
from stampede.training.scaling import HyperParameters, Rule, scale

BASE = HyperParameters(learning_rate=8e-4, embedding_learning_rate=1e-4, l2=1e-5)
S = 9.0


@pytest.mark.parametrize(
    ("rule", "embedding", "l2", "dense"),
    [
        ("none", 1, 1, 1),
        ("sqrt", 3, 3, 3),
        ("linear", 9, 1, 9),
        ("n2-lambda", 1, 81, 3),
        ("cowclip", 1, 9, 3),
    ],
)
def test_each_rule_scales_as_its_row_of_the_table(
    rule: str, embedding: float, l2: float, dense: float
) -> None:
    scaled = scale(BASE, S, rule=rule)

    assert scaled.embedding_learning_rate == pytest.approx(1e-4 * embedding)
    assert scaled.l2 == pytest.approx(1e-5 * l2)
    assert scaled.learning_rate == pytest.approx(8e-4 * dense)


@pytest.mark.parametrize("rule", list(Rule))
def test_the_base_batch_is_left_as_it_is(rule: Rule) -> None:
    assert scale(BASE, 1, rule=rule) == BASE


def test_the_papers_settings_at_128k_follow_from_those_at_1k() -> None:
    scaled = scale(BASE, 128, rule=Rule.COWCLIP)

    assert scaled.learning_rate == pytest.approx(90.50e-4, rel=1e-3)
    assert scaled.l2 == pytest.approx(128e-5)


def test_a_smaller_batch_scales_down() -> None:
    assert scale(BASE, 0.25, rule="cowclip").learning_rate == pytest.approx(4e-4)


@pytest.mark.parametrize("s", [0, -1, math.nan, math.inf])
def test_a_scale_that_is_no_positive_number_is_a_config_error(s: float) -> None:
    with pytest.raises(ConfigError):
        scale(BASE, s, rule="cowclip")


def test_an_unknown_rule_names_the_choices() -> None:
    with pytest.raises(ConfigError, match="none, sqrt, linear, n2-lambda, cowclip"):
        scale(BASE, 2, rule="cubic")
