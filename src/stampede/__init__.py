"""Stampede: click-through-rate models from raw click logs, with very large batches.

The parts are imported by name when they are needed:

- ``stampede.pipeline``: raw click logs -> a frequency-annotated dataset
- ``stampede.kernels``: the numerics of the embedding update
- ``stampede.training``: loader, embedding, models, optimizers, metrics, trainer
- ``stampede.workflows``: the jobs behind the commands

Every error that a user can cause is a :class:`StampedeError` with a one-line message.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from pydantic import ValidationError

__version__ = "0.1.0"

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DatasetError",
    "DeviceError",
    "DivergedError",
    "InputError",
    "SchemaError",
    "StampedeError",
    "StoppedError",
    "__version__",
]


class StampedeError(Exception):
    """Base of every error that Stampede raises on purpose: one line that says what is wrong and the mend."""

    @classmethod
    def of_validation(cls, error: ValidationError, where: str, *, mend: str = "") -> Self:
        """Return the first fault of a pydantic validation in one line: ``WHERE: key KEY: fault; MEND``."""
        key, fault, _ = _first_fault(error)
        line = ": ".join(part for part in (where, f"key {key}" if key else "", fault) if part)
        return cls(f"{line}; {mend}" if mend else line)


class SchemaError(StampedeError):
    """A schema that does not describe a click log, or an input whose columns do not fit its schema."""


class ConfigError(StampedeError):
    """Options that contradict each other or have no meaning."""

    @classmethod
    def of_options(cls, error: ValidationError) -> Self:
        """Return the first fault of values that a user gave as options: ``--OPTION VALUE: what is wrong``."""
        key, fault, value = _first_fault(error)
        return cls(f"--{key.replace('_', '-')} {value}: {fault}" if key else fault)


class DatasetError(StampedeError):
    """A folder that is no dataset, a damaged one, or one that cannot be written."""


class DeviceError(StampedeError):
    """A device that was asked for and is not there, or is too small."""


class CheckpointError(StampedeError):
    """A run folder or checkpoint that is missing, damaged or of another kind."""


class DivergedError(StampedeError):
    """A loss or scores that are no longer finite: the training has diverged."""


class StoppedError(StampedeError):
    """A job that a signal stopped, once its state was saved."""


class InputError(StampedeError):
    """Raw input that cannot be used.

    Parameters
    ----------
    message:
        What is wrong and what to do, without the place.
    file:
        The input file at fault.
    line:
        Line (text) or row (parquet) in that file, counted from 1, a header included.
    column:
        Name of the column at fault.
    """

    def __init__(
        self,
        message: str,
        *,
        file: str | Path | None = None,
        line: int | None = None,
        column: str | None = None,
    ) -> None:
        place = "" if file is None else str(file)
        if line is not None:
            place += f", line {line}" if place else f"line {line}"
        if column is not None:
            place += f", column {column}" if place else f"column {column}"
        super().__init__(f"{place}: {message}" if place else message)
        self.file = None if file is None else str(file)
        self.line = line
        self.column = column


def _first_fault(error: ValidationError) -> tuple[str, str, Any]:
    """Return key, fault in plain words, and value; an unknown key first, since it explains others."""
    faults = sorted(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
    first = faults[0]
    words = {
        "extra_forbidden": "there is no such key",
        "missing": "it is required",
        "tuple_type": "it must be a list",
        "int_parsing": "not a whole number",
        "int_type": "not a whole number",
        "int_from_float": "not a whole number",
        "float_parsing": "not a number",
        "float_type": "not a number",
        "finite_number": "not a finite number",
    }
    plain = first["msg"].removeprefix("Value error, ").replace("Input should", "it must", 1)
    key = ".".join(str(part) for part in first["loc"])
    return key, words.get(first["type"], plain), first["input"]
