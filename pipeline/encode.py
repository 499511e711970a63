"""Typed rows -> ids, counts and scaled dense features: the same code for training, evaluation and serving."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
import polars as pl
from pydantic import BaseModel, ConfigDict, ValidationError

from stampede import CheckpointError, ConfigError, DatasetError
from stampede.pipeline.dataset import (
    LABEL,
    TARGET_FOLDER,
    VOCABULARY_FOLDER,
    Dataset,
    DenseInfo,
    DenseMode,
    Encoding,
)
from stampede.pipeline.dense import log_bucket, null_flag, transform_dense
from stampede.pipeline.errors import READ_ERRORS, first_line
from stampede.pipeline.rows import HOUR
from stampede.pipeline.schema import Schema
from stampede.pipeline.target import FOLD, OutOfFold, Target
from stampede.pipeline.vocabulary import Entries, Lookup, Vocabulary

# Between the values of a cross: control characters, hardly in any log; escaped where they are.
BETWEEN, ESCAPE = "\x1f", "\x1b"

SHOWN_FIELDS = 8


class DatasetOrigin(BaseModel):
    """Where a run's dataset lay, and the SHA-256 of its manifest."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    fingerprint: str


class EncoderFile(BaseModel):
    """What ``encoder.json`` of a run holds; vocabularies and targets lie beside it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    log: Schema
    encoding: Encoding
    dense: tuple[DenseInfo, ...]
    dataset: DatasetOrigin


@dataclass(frozen=True)
class Encoder:
    """Turns typed rows of one log into model inputs, with what was fitted.

    Attributes
    ----------
    vocabularies:
        Of each field.
    targets:
        Of each field that is target-encoded.
    """

    schema: Schema
    encoding: Encoding
    dense: tuple[DenseInfo, ...]
    vocabularies: Mapping[str, Vocabulary]
    targets: Mapping[str, Target] = field(default_factory=dict)

    @classmethod
    def of_dataset(cls, dataset: Dataset) -> Self:
        """Return the encoder that a dataset was made with."""
        manifest = dataset.manifest
        encoding = manifest.encoding
        vocabularies = {name: Vocabulary.load(dataset.vocabulary_file(name)) for name in dataset.fields}
        targets = {name: Target.load(dataset.target_file(name)) for name in encoding.target_encoded}
        return cls(manifest.log, encoding, manifest.dense, vocabularies, targets)

    @classmethod
    def load(cls, folder: Path) -> tuple[Self, DatasetOrigin]:
        """Read the encoder of a run, and where its dataset lay.

        Raises
        ------
        CheckpointError
            ``encoder.json`` or a vocabulary is missing or damaged.
        """
        try:
            spec = EncoderFile.model_validate_json(_present(folder / "encoder.json").read_bytes())
            vocabularies = {
                name: Vocabulary.load(_present(folder / VOCABULARY_FOLDER / f"{name}.parquet"))
                for name in field_values(spec.log, spec.encoding)
            }
            targets = {
                name: Target.load(_present(folder / TARGET_FOLDER / f"{name}.parquet"))
                for name in spec.encoding.target_encoded
            }
        except ValidationError as error:
            raise CheckpointError.of_validation(error, f"the encoder in {folder} is damaged") from error
        except (*READ_ERRORS, DatasetError) as error:
            raise CheckpointError(f"the encoder in {folder} is damaged: {first_line(error)}") from error
        return cls(spec.log, spec.encoding, spec.dense, vocabularies, targets), spec.dataset

    @property
    def dense_columns(self) -> tuple[str, ...]:
        """Names of the float32 columns of an encoded row, in order."""
        return self.encoding.dense_columns([info.name for info in self.dense], tuple(self.vocabularies))

    def columns(self, *, counts: bool) -> list[str]:
        """Names of the columns of an encoded row, in order, after the label."""
        columns = list(self.dense_columns)
        for name in self.vocabularies:
            columns += [name, f"{name}_count"] if counts else [name]
        return columns

    def encodes_as(self, other: Encoder) -> bool:
        """Whether both make the same of every row, given that their vocabularies have the same values."""
        if (self.encoding, self.dense) != (other.encoding, other.dense):
            return False
        tables = [(target.rates, other.targets[name].rates) for name, target in self.targets.items()]
        if self.encoding.count_features:
            tables += [
                (v.log_counts, other.vocabularies[name].log_counts) for name, v in self.vocabularies.items()
            ]
        return all(np.array_equal(mine, theirs) for mine, theirs in tables)

    def save(self, folder: Path, origin: DatasetOrigin) -> None:
        """Write ``encoder.json``, ``vocab/`` and ``target/`` into the folder of a run."""
        spec = EncoderFile(log=self.schema, encoding=self.encoding, dense=self.dense, dataset=origin)
        (folder / "encoder.json").write_text(spec.model_dump_json(indent=2) + "\n", "utf-8")
        (folder / VOCABULARY_FOLDER).mkdir(exist_ok=True)
        for name, vocabulary in self.vocabularies.items():
            vocabulary.save(folder / VOCABULARY_FOLDER / f"{name}.parquet")
        self.save_targets(folder)

    def save_targets(self, folder: Path) -> None:
        """Write ``target/`` into the folder of a dataset or run."""
        for name, target in self.targets.items():
            target.save(folder / TARGET_FOLDER / f"{name}.parquet")

    def encode(
        self,
        rows: pl.LazyFrame,
        *,
        counts: bool,
        keep: tuple[str, ...] = (),
        lookup: Lookup | None = None,
        out_of_fold: OutOfFold | None = None,
    ) -> pl.LazyFrame:
        """Encode typed rows (see :mod:`stampede.pipeline.rows`) in order.

        Parameters
        ----------
        counts:
            Whether each id is followed by how often it occurred among the fitted rows.
        keep:
            Columns of ``rows`` that are handed on as they are, such as ``label``.
        lookup:
            How values become ids; an engine may have its own way.
        out_of_fold:
            The targets of the rows that were fitted on; ``rows`` have their fold then.
        """
        lookup = lookup or Lookup()
        folds = [FOLD] if out_of_fold else []
        dense, ids = self.numbers(), self.ids(tuple(self.vocabularies), lookup)
        encoded = rows.select(*keep, *folds, *dense, *ids)
        return self.completed(encoded, counts=counts, keep=keep, lookup=lookup, out_of_fold=out_of_fold)

    def numbers(self) -> list[pl.Expr]:
        """Float32 model inputs of the dense columns."""
        if self.encoding.dense_mode == DenseMode.LOG_BUCKET:
            return []
        numbers = [transform_dense(info, mode=self.encoding.dense_mode) for info in self.dense]
        if self.encoding.dense_null_flag:
            numbers += [null_flag(info.name) for info in self.dense]
        return numbers

    def ids(self, names: Sequence[str], lookup: Lookup) -> list[pl.Expr]:
        """Int32 ids of some fields."""
        values = field_values(self.schema, self.encoding)
        return [lookup.ids(name, self.vocabularies, values[name]).alias(name) for name in names]

    def completed(
        self,
        encoded: pl.LazyFrame,
        *,
        counts: bool,
        keep: tuple[str, ...] = (),
        lookup: Lookup | None = None,
        out_of_fold: OutOfFold | None = None,
    ) -> pl.LazyFrame:
        """Add what follows from the ids, to rows with ids and scaled dense features; see :meth:`encode`."""
        lookup = lookup or Lookup()
        added: dict[str, Entries] = {}
        for name, vocabulary in self.vocabularies.items():
            if counts:
                added[f"{name}_count"] = (pl.col(name), vocabulary.row_counts)
            if self.encoding.count_features:
                added[f"{name}_log_count"] = (pl.col(name), vocabulary.log_counts)
        for name, target in self.targets.items():
            if out_of_fold:
                added[f"{name}_target"] = (out_of_fold.index(name), out_of_fold.rates[name])
            else:
                added[f"{name}_target"] = (pl.col(name), target.rates)
        return lookup.with_entries(encoded, added).select(*keep, *self.columns(counts=counts))


def _present(file: Path) -> Path:
    if not file.is_file():
        raise CheckpointError(f"{file} is missing: this is no whole run")
    return file


def field_values(schema: Schema, encoding: Encoding) -> dict[str, pl.Expr]:
    """Return for each categorical field of a dataset its value's expression (String, null where empty)."""
    values: dict[str, pl.Expr] = {}
    if encoding.dense_mode == DenseMode.LOG_BUCKET:
        values |= {name: log_bucket(name) for name in schema.dense}
    values |= {name: pl.col(name) for name in schema.categorical}
    if schema.time is not None:
        hour_of_day = pl.col(HOUR) % 24
        weekday = (pl.col(HOUR) // 24 + 3) % 7 + 1  # 1970-01-01 was a Thursday
        features = {"hour_of_day": hour_of_day, "weekday": weekday}
        values |= {name: features[name].cast(pl.String) for name in schema.time_features}
    return values | {cross_name(*pair): _cross(*(values[name] for name in pair)) for pair in encoding.crosses}


def cross_name(one: str, other: str) -> str:
    """Return the name of the field that two fields are crossed to."""
    return f"{one}_x_{other}"


def _cross(one: pl.Expr, other: pl.Expr) -> pl.Expr:
    """Combine two values to one, a different one for each pair; empty where both are."""
    first = one.str.replace_all(ESCAPE, ESCAPE * 2, literal=True)
    first = first.str.replace_all(BETWEEN, ESCAPE + BETWEEN, literal=True)
    both = pl.concat_str(first.fill_null(""), pl.lit(BETWEEN), other.fill_null(""))
    return pl.when(one.is_not_null() | other.is_not_null()).then(both)


def check_columns(schema: Schema, encoding: Encoding) -> None:
    """Raise unless the fields that crosses and targets name exist, and every column has a name of its own.

    Raises
    ------
    ConfigError
        Names the flag and the field.
    """
    plain = tuple(field_values(schema, encoding.model_copy(update={"crosses": ()})))
    fields = plain + tuple(cross_name(*pair) for pair in encoding.crosses)
    named = [("--cross", name, plain) for pair in encoding.crosses for name in pair]
    named += [("--target-encode", name, fields) for name in encoding.target_encoded]
    for flag, name, known in named:
        if name not in known:
            raise ConfigError(f"{flag}: there is no field {name}: {_instead(name, schema, known)}")
    columns = [LABEL, *encoding.dense_columns(schema.dense, fields), *fields]
    columns += [f"{name}_count" for name in fields]
    if repeated := sorted({name for name in columns if columns.count(name) > 1}):
        raise ConfigError(
            f"two columns would be called {repeated[0]}: leave one out, or rename it in the schema"
        )


def _instead(name: str, schema: Schema, known: Sequence[str]) -> str:
    """Say what to do about a field that is not there."""
    if name in schema.dense:
        return "it is a number, which is a field with --dense log-bucket only"
    if "_x_" in name:
        return f"add --cross {name.replace('_x_', ',')}"
    alike = difflib.get_close_matches(name, known, n=1) or [n for n in known if n.lower() == name.lower()]
    shown = ", ".join(known[:SHOWN_FIELDS]) + (", …" if len(known) > SHOWN_FIELDS else "")
    return f"did you mean {alike[0]}?" if alike else f"choose from {shown}"
