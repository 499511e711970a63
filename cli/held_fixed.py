"""The options of ``train`` on another command: what is given there is the same for all of its runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from stampede import ConfigError
from stampede.cli.train import train

OF_ONE_RUN = frozenset(
    {"dataset", "out", "recipe", "model", "batch_size", "rule", "clip", "seed", "init_from"}
)
"""Options of ``train`` that a study has for all of its runs, or that have no meaning for several."""

COMMON = frozenset({"force", "resume", "json", "debug"})

LISTS = ("hidden", "bottom_hidden", "cin_layers")


def with_train_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of ``train`` as well; it takes the values that were given as ``fixed``.

    An option that the command has itself stays its own.
    """
    own = dict(inspect.signature(command, eval_str=True).parameters)
    del own["fixed"]
    others = {
        name: parameter
        for name, parameter in inspect.signature(train, eval_str=True).parameters.items()
        if name not in own and name not in OF_ONE_RUN | COMMON
    }

    def called(**values: Any) -> None:
        given = {name: values.pop(name) for name in others}
        command(**values, fixed=_typed(given, {name: one.default for name, one in others.items()}))

    together = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in (*own.values(), *others.values())
    ]
    called.__name__, called.__doc__ = command.__name__, command.__doc__
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in together}
    called.__signature__ = inspect.Signature(together)  # type: ignore[attr-defined]
    return called


def _typed(given: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Return what was given as values of a run."""
    from stampede.pipeline.memory import parse_bytes
    from stampede.training.config import TrainConfig

    values = {name: value for name, value in given.items() if value != defaults[name]}
    for name in values:
        flag = "--" + name.replace("_", "-")
        if name not in TrainConfig.model_fields:
            raise ConfigError(f"{flag} is of a single run: it has no meaning for a study")
        if name in LISTS:
            values[name] = _widths(values[name], flag)
        if name == "loader_memory":
            values[name] = parse_bytes(values[name], flag=flag)
    return values


def _widths(text: str, flag: str) -> tuple[int, ...]:
    try:
        return tuple(int(width) for width in text.split(","))
    except ValueError:
        raise ConfigError(f"{flag} {text}: not a list of widths such as 400,400,400") from None
