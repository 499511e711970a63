from typing import Any

import pytest

from stampede import ConfigError
from stampede.training.config import TrainConfig


@pytest.mark.parametrize(
    ("given", "optimizer", "clip"),
    [
        ({}, "cowclip", "cowclip"),
        ({"optimizer": "adam"}, "adam", "none"),
        ({"optimizer": "cowclip"}, "cowclip", "cowclip"),
        ({"optimizer": "helen"}, "helen", "none"),
        ({"clip": "none"}, "adam", "none"),
        ({"clip": "adaptive-field"}, "adam", "adaptive-field"),
        ({"clip": "field", "clip_norm": 0.1}, "adam", "field"),
        ({"optimizer": "adam", "clip": "cowclip"}, "cowclip", "cowclip"),
        ({"optimizer": "sgd", "clip": "cowclip"}, "sgd", "cowclip"),
        ({"optimizer": "adagrad", "clip": "column", "clip_norm": 1.0}, "adagrad", "column"),
    ],
)
def test_optimizer_and_clip_follow_from_each_other(given: dict[str, Any], optimizer: str, clip: str) -> None:
    config = TrainConfig.check(**given)

    assert (config.optimizer, config.clip) == (optimizer, clip)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"optimizer": "cowclip", "clip": "none"}, "cowclip is adam with the clip cowclip"),
        ({"optimizer": "cowclip", "clip": "column", "clip_norm": 1.0}, "--clip column"),
        ({"optimizer": "helen", "clip": "cowclip"}, "helen clips nothing"),
        ({"optimizer": "helen", "update": "touched"}, "--update touched does not go with it"),
        ({"clip": "global"}, "--clip global needs --clip-norm"),
        ({"clip": "cowclip", "clip_norm": 1.0}, "--clip-norm is of --clip global, field and column"),
        ({"optimizer": "sgd", "clip_norm": 1.0}, "--clip-norm is of"),
    ],
)
def test_values_that_contradict_each_other_are_a_config_error(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainConfig.check(**given)
