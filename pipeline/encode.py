"""Typed rows -> ids, counts and scaled dense features: the same code for training, evaluation and serving."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import polars as pl
from pydantic import BaseModel, ConfigDict, ValidationError

from stampede import CheckpointError, DatasetError
from stampede.pipeline.dataset import Dataset, DenseInfo, DenseMode, dense_columns
from stampede.pipeline.dense import log_bucket, null_flag, transform_dense
from stampede.pipeline.errors import READ_ERRORS, first_line
from stampede.pipeline.rows import HOUR
from stampede.pipeline.schema import Schema
from stampede.pipeline.vocabulary import Lookup, Vocabulary


class DatasetOrigin(BaseModel):
    """Where a run's dataset lay, and the SHA-256 of its manifest."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    fingerprint: str


class EncoderFile(BaseModel):
    """What ``encoder.json`` of a run holds; the vocabularies lie beside it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    log: Schema
    dense_mode: DenseMode
    dense_null_flag: bool
    dense: tuple[DenseInfo, ...]
    dataset: DatasetOrigin


@dataclass(frozen=True)
class Encoder:
    """Turns typed rows of one log into model inputs, with fitted vocabularies and dense statistics."""

    schema: Schema
    dense_mode: DenseMode
    dense_null_flag: bool
    dense: tuple[DenseInfo, ...]
    vocabularies: Mapping[str, Vocabulary]

    @classmethod
    def of_dataset(cls, dataset: Dataset) -> Self:
        """Return the encoder that a dataset was made with."""
        manifest = dataset.manifest
        vocabularies = {name: Vocabulary.load(dataset.vocabulary_file(name)) for name in dataset.fields}
        return cls(manifest.log, manifest.dense_mode, manifest.dense_null_flag, manifest.dense, vocabularies)

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
                name: Vocabulary.load(_present(folder / "vocab" / f"{name}.parquet"))
                for name in field_values(spec.log, spec.dense_mode)
            }
        except ValidationError as error:
            raise CheckpointError.of_validation(error, f"the encoder in {folder} is damaged") from error
        except (*READ_ERRORS, DatasetError) as error:
            raise CheckpointError(f"the encoder in {folder} is damaged: {first_line(error)}") from error
        encoder = cls(spec.log, spec.dense_mode, spec.dense_null_flag, spec.dense, vocabularies)
        return encoder, spec.dataset

    @property
    def dense_columns(self) -> tuple[str, ...]:
        """Names of the float32 columns of an encoded row, in order."""
        return dense_columns(self.dense, self.dense_mode, null_flags=self.dense_null_flag)

    def columns(self, *, counts: bool) -> list[str]:
        """Names of the columns of an encoded row, in order, after the label."""
        columns = list(self.dense_columns)
        for name in self.vocabularies:
            columns += [name, f"{name}_count"] if counts else [name]
        return columns

    def save(self, folder: Path, origin: DatasetOrigin) -> None:
        """Write ``encoder.json`` and ``vocab/`` into the folder of a run."""
        spec = EncoderFile(
            log=self.schema,
            dense_mode=self.dense_mode,
            dense_null_flag=self.dense_null_flag,
            dense=self.dense,
            dataset=origin,
        )
        (folder / "encoder.json").write_text(spec.model_dump_json(indent=2) + "\n", "utf-8")
        (folder / "vocab").mkdir(exist_ok=True)
        for name, vocabulary in self.vocabularies.items():
            vocabulary.save(folder / "vocab" / f"{name}.parquet")

    def encode(
        self,
        rows: pl.LazyFrame,
        *,
        counts: bool,
        keep: tuple[str, ...] = (),
        lookup: Lookup | None = None,
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
        """
        lookup = lookup or Lookup()
        dense: list[pl.Expr] = []
        if self.dense_mode != DenseMode.LOG_BUCKET:
            dense = [transform_dense(info, mode=self.dense_mode) for info in self.dense]
            if self.dense_null_flag:
                dense += [null_flag(info.name) for info in self.dense]
        ids, id_counts = [], []
        for name, value in field_values(self.schema, self.dense_mode).items():
            vocabulary = self.vocabularies[name]
            ids.append(lookup.ids(name, vocabulary, value).alias(name))
            if counts:
                id_counts.append(lookup.entries(pl.col(name), vocabulary.row_counts).alias(f"{name}_count"))
        encoded = rows.select(*keep, *dense, *ids).with_columns(id_counts)
        return encoded.select(*keep, *self.columns(counts=counts))


def _present(file: Path) -> Path:
    if not file.is_file():
        raise CheckpointError(f"{file} is missing: this is no whole run")
    return file


def field_values(schema: Schema, mode: DenseMode) -> dict[str, pl.Expr]:
    """Return for each categorical field of a dataset its value's expression (String, null where empty)."""
    values: dict[str, pl.Expr] = {}
    if mode == DenseMode.LOG_BUCKET:
        values |= {name: log_bucket(name) for name in schema.dense}
    values |= {name: pl.col(name) for name in schema.categorical}
    if schema.time is not None:
        hour_of_day = pl.col(HOUR) % 24
        weekday = (pl.col(HOUR) // 24 + 3) % 7 + 1  # 1970-01-01 was a Thursday
        features = {"hour_of_day": hour_of_day, "weekday": weekday}
        values |= {name: features[name].cast(pl.String) for name in schema.time_features}
    return values
