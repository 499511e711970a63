"""What a raw click log holds: its label, dense and categorical columns, and how its text is written."""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from stampede import ConfigError, SchemaError

PRESETS = ("criteo", "avazu")

TIME_FEATURES = ("hour_of_day", "weekday")

TimeFormat = Literal["auto", "yymmddhh", "iso", "unix"]


class Schema(BaseModel):
    """The description of a click log, as a TOML schema file states it.

    Attributes
    ----------
    name:
        Name of the log: that of the preset, or of the user's choice.
    label:
        Column of the click: 0/1, -1/1, true/false or 0.0/1.0.
    dense, categorical:
        Columns of numbers, and columns whose values are text, byte for byte.
    time:
        Column of the event time, if there is one. It yields the categorical fields in ``time_features``.
    time_format:
        ``yymmddhh`` (14102100), ``iso`` (2014-10-21, with or without a time), ``unix`` (seconds), or
        ``auto``: each value by its shape.
    time_features:
        Fields that the time yields: ``hour_of_day`` (0 to 23) and ``weekday`` (1 Monday to 7 Sunday), in UTC.
    drop:
        Columns that are in the file and not used.
    columns:
        Order of the columns in a file without a header; default: label, dense, categorical, time, drop.
    separator:
        One character; default: found from the file (tab or comma, or the one of ``, ; |`` that fits).
    header:
        Whether text files begin with a line of column names; default: found from the file.
    null_values:
        Texts that mean "no value"; the empty text always does.

    Raises
    ------
    SchemaError
        From :meth:`load` and :meth:`preset`, for a file that is no valid schema.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    label: str = Field(min_length=1)
    dense: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    time: str | None = None
    time_format: TimeFormat = "auto"
    time_features: tuple[str, ...] = TIME_FEATURES
    drop: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    separator: str | None = Field(default=None, min_length=1, max_length=1)
    header: bool | None = None
    null_values: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        roles = (self.label, *self.dense, *self.categorical, *((self.time,) if self.time else ()), *self.drop)
        if repeated := sorted({name for name in roles if roles.count(name) > 1}):
            raise ValueError(f"column {', '.join(repeated)} has more than one role")
        if unknown := sorted(set(self.time_features) - set(TIME_FEATURES)):
            raise ValueError(f"time_features has {', '.join(unknown)}; known are {', '.join(TIME_FEATURES)}")
        if not self.dense and not self.fields:
            raise ValueError("there is neither a dense nor a categorical column to learn from")
        outputs = ["label", *self.dense, *self.fields]
        outputs += [f"{field}_count" for field in self.fields] + [f"{name}_null" for name in self.dense]
        if clashes := sorted({name for name in outputs if outputs.count(name) > 1}):
            raise ValueError(f"column name {', '.join(clashes)} is needed for a column that is added")
        for name in (*roles, *outputs):
            if not name or "/" in name or "\0" in name or name.startswith("."):
                raise ValueError(f"column name {name!r} is empty, contains '/' or starts with '.'")
            if name == "*" or (name.startswith("^") and name.endswith("$")):
                raise ValueError(f"column name {name!r} would be read as a pattern: rename it")
        if self.separator in ('"', "\n", "\r"):
            raise ValueError("the separator must not be a quote or a line end")
        if not self.columns:
            object.__setattr__(self, "columns", roles)
        elif missing := sorted(set(roles) - set(self.columns)):
            raise ValueError(f"columns does not list {', '.join(missing)}")
        elif len(set(self.columns)) < len(self.columns):
            raise ValueError("columns lists a name twice")
        return self

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the categorical fields of a dataset: the columns, then the features of the time."""
        return self.categorical + (self.time_features if self.time else ())

    @property
    def needed(self) -> tuple[str, ...]:
        """Input columns that an encoded row is made of, the label excepted."""
        return self.dense + self.categorical + ((self.time,) if self.time else ())

    @classmethod
    def preset(cls, name: str) -> Self:
        """Return the schema of a log in circulation, one of :data:`PRESETS`."""
        if name not in PRESETS:
            raise SchemaError(
                f"unknown preset {name!r}: choose {' or '.join(PRESETS)}, or give a TOML schema"
            )
        text = resources.files("stampede.pipeline").joinpath("presets", f"{name}.toml").read_text("utf-8")
        return cls(**tomllib.loads(text))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a schema from a TOML file.

        Raises
        ------
        SchemaError
            The file cannot be read, is not TOML, or does not describe a log; the message names the key.
        """
        try:
            document = tomllib.loads(path.read_text("utf-8"))
        except OSError as error:
            raise SchemaError(f"{path}: cannot read the schema: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise SchemaError(f"{path}: not a TOML file: {error}") from error
        document.setdefault("name", path.stem)
        try:
            return cls(**document)
        except ValidationError as error:
            raise SchemaError.of_validation(error, str(path)) from error

    @classmethod
    def named(cls, preset_or_path: str) -> Self:
        """Return the preset of that name, else the schema in that TOML file."""
        if preset_or_path in PRESETS:
            return cls.preset(preset_or_path)
        path = Path(preset_or_path)
        if path.suffix == ".toml" or path.is_file():
            return cls.load(path)
        raise ConfigError(
            f"{preset_or_path!r} is neither a preset ({', '.join(PRESETS)}) nor a TOML schema file"
        )
