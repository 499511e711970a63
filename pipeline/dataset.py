"""The dataset: the contract between preparation and training, all that training sees of the pipeline.

    DATASET/
      manifest.json               schema, options, statistics, files with row counts
      train/part-00000.parquet    valid/…  test/…
      vocab/C1.parquet            id int32, value string, count int64
      target/C1.parquet           only of fields that are target-encoded: id int32, rows int64, clicks int64
      rejected.parquet            only where rows were left out

A part has ``label`` int8, each dense feature float32, and for each categorical field ``X`` its id ``X`` int32
and, unless the dataset was prepared without counts, ``X_count`` int32: how often that id occurs among the
rows that were fitted on.

Ids of a field: 0 padding, 1 null or empty, 2 unseen or rare, then 3, 4, … by descending count, ties by
ascending value bytes; hash buckets, where asked for, follow the values that were kept. A vocabulary that grew
with later splits is ordered by generation: the ids that a growth brought follow on all earlier ones, among
them by descending count in that split, ties by ascending value bytes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final, Literal, Self

import polars as pl
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stampede import DatasetError
from stampede.pipeline.errors import READ_ERRORS, first_line
from stampede.pipeline.publish import finish_exchange
from stampede.pipeline.schema import Schema

FORMAT: Final = "stampede-dataset"
FORMAT_VERSION = 1

MANIFEST = "manifest.json"
VOCABULARY_FOLDER = "vocab"
TARGET_FOLDER = "target"
REJECTED = "rejected.parquet"

LABEL = "label"
PADDING_ID, NULL_ID, UNSEEN_ID, FIRST_VALUE_ID = 0, 1, 2, 3

Split = str
SPLITS: tuple[Split, ...] = ("train", "valid", "test")  # that a dataset is made with; later files add others
SPLIT_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


class DenseMode(StrEnum):
    """How a dense feature becomes a model input; see :mod:`stampede.pipeline.dense`."""

    LOG = "log"
    MINMAX = "minmax"
    STANDARD = "standard"
    NONE = "none"
    LOG_BUCKET = "log-bucket"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SplitRule(_Record):
    """How rows are divided: the rule, the fractions of all rows, the seed or the unit of time."""

    rule: Literal["random", "sequential", "time"] = "random"
    valid_fraction: float = 0.1
    test_fraction: float = 0.1
    seed: int = 0
    time_unit: Literal["hour", "day"] = "hour"


class Encoding(_Record):
    """Which columns rows are turned into, besides an id per categorical column of the log.

    Attributes
    ----------
    dense_mode, dense_null_flag:
        How dense features become model inputs, and whether ``X_null`` says where each was empty.
    crosses:
        Pairs of fields whose combined values are a further field.
    count_features:
        Whether ``X_log_count`` says how frequent the id of each field is: log(1 + count) over log(1 + rows),
        both of the fitted rows; 0 for unseen and rare values.
    target_encoded, folds:
        Fields whose click rate is the column ``X_target``, out of fold in the training split; see
        :mod:`stampede.pipeline.target`.
    """

    dense_mode: DenseMode = DenseMode.LOG
    dense_null_flag: bool = False
    crosses: tuple[tuple[str, str], ...] = ()
    count_features: bool = False
    target_encoded: tuple[str, ...] = ()
    folds: int = 5

    def dense_columns(self, dense: Sequence[str], fields: Sequence[str]) -> tuple[str, ...]:
        """Return the names of the float32 columns, given those of the dense features and the fields."""
        columns = () if self.dense_mode == DenseMode.LOG_BUCKET else tuple(dense)
        if self.dense_null_flag:
            columns += tuple(f"{name}_null" for name in columns)
        if self.count_features:
            columns += tuple(f"{field}_log_count" for field in fields)
        return columns + tuple(f"{field}_target" for field in self.target_encoded)


class FieldInfo(_Record):
    """A categorical field: ``size`` ids in all, and how many training rows are null (id 1) or rare (id 2).

    Where the vocabulary grew, the rows of the splits that it grew with are training rows too.
    """

    name: str
    size: int
    null: int
    rare: int


class DenseInfo(_Record):
    """Statistics of a dense feature over the fitted rows, before any transform; float64.

    ``null`` of the rows are empty; they count as 0 in the rest.
    """

    name: str
    null: int
    minimum: float
    maximum: float
    mean: float | None = None
    std: float | None = None


class PartInfo(_Record):
    """A parquet file of a split, relative to the dataset, and its number of rows."""

    path: str
    rows: int


class SplitInfo(_Record):
    """A split: its rows, the share of them that were clicked, its files in row order.

    ``growths`` is how many growths of the vocabulary it was encoded after: it has no ids of later ones, and
    its columns ``X_count`` are the counts of that time.
    """

    rows: int
    click_rate: float
    files: tuple[PartInfo, ...]
    growths: int = 0


class Growth(_Record):
    """What the vocabularies gained with a split.

    Attributes
    ----------
    split:
        The split whose values were added, and whose rows are counted from then on.
    rows:
        Its rows: those that the vocabularies are fitted on became so many more.
    min_count:
        How often a new value had to occur in them.
    ids:
        How many ids each field gained.
    """

    split: Split
    rows: int
    min_count: int
    ids: dict[str, int]


class Manifest(BaseModel):
    """What ``manifest.json`` holds. It names no machine, time or absolute path: same data, same manifest.

    ``growths`` are those of the vocabularies, in order. ``earlier`` has the SHA-256 of each manifest that the
    dataset had before a split was added.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    format: Literal["stampede-dataset"] = FORMAT
    format_version: int = FORMAT_VERSION
    log: Schema = Field(alias="schema")
    split: SplitRule
    fit_on: Literal["train", "all"]
    min_count: int
    max_size: int | None
    hash_buckets: int
    encoding: Encoding
    counts: bool
    fields: tuple[FieldInfo, ...]
    dense: tuple[DenseInfo, ...]
    splits: dict[Split, SplitInfo]
    rejected: int
    growths: tuple[Growth, ...] = ()
    earlier: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Return the document, as it is in the file."""
        return self.model_dump_json(indent=1, by_alias=True) + "\n"


class _Versioned(BaseModel):
    """The part of a manifest that every version of the format has."""

    format_version: int


class Dataset:
    """A prepared dataset on disk.

    Example
    -------
    >>> dataset = Dataset.open("data/criteo")  # doctest: +SKIP
    >>> dataset.rows["train"], dataset.sizes["C1"]  # doctest: +SKIP
    (36672493, 1401)
    """

    def __init__(self, path: Path, manifest: Manifest, fingerprint: str) -> None:
        self.path = path
        self.manifest = manifest
        self.fingerprint = fingerprint

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open a dataset and check that it is whole.

        Every file that the manifest names must be there with its columns and its number of rows.

        Raises
        ------
        DatasetError
            The folder is no dataset, is damaged, or was written by a newer version.
        """
        folder = Path(path)
        file = folder / MANIFEST
        try:
            finish_exchange(folder)
            document = file.read_bytes()
        except FileNotFoundError as error:
            missing = "has no manifest.json" if folder.is_dir() else "does not exist"
            raise DatasetError(f"{folder} {missing}: make a dataset with 'stampede prepare'") from error
        except OSError as error:
            raise DatasetError(f"{file}: cannot read it: {error.strerror}") from error
        dataset = cls(folder, _parse_manifest(document, file), hashlib.sha256(document).hexdigest())
        dataset._check_files()
        return dataset

    @property
    def rows(self) -> dict[Split, int]:
        """Number of rows of each split that the dataset has."""
        return {split: info.rows for split, info in self.manifest.splits.items()}

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the categorical fields, in order."""
        return tuple(info.name for info in self.manifest.fields)

    @property
    def sizes(self) -> dict[str, int]:
        """Number of ids of each categorical field, the reserved ones included."""
        return {info.name: info.size for info in self.manifest.fields}

    @property
    def dense_columns(self) -> tuple[str, ...]:
        """Names of the float32 columns, in order; empty where all dense features became categorical."""
        return self.manifest.encoding.dense_columns([info.name for info in self.manifest.dense], self.fields)

    def scan(self, split: Split) -> pl.LazyFrame:
        """Return the rows of a split, in order.

        Raises
        ------
        DatasetError
            The dataset has no such split.
        """
        if split not in self.manifest.splits:
            have = ", ".join(self.manifest.splits)
            raise DatasetError(f"{self.path} has no {split} split (it has {have})")
        files = [self.path / part.path for part in self.manifest.splits[split].files]
        return pl.scan_parquet(files, glob=False)

    def read(self, split: Split, columns: Sequence[str | pl.Expr]) -> pl.DataFrame:
        """Return columns of a split, or what is computed of them, all its rows in order.

        Raises
        ------
        DatasetError
            The dataset has no such split, or a file of it is damaged.
        """
        return collect_rows(self.scan(split).select(columns), subject=f"{self.path / split} is")

    def vocabulary_file(self, field: str) -> Path:
        """Return the parquet file of a field's ids: id int32, value string, count int64."""
        return self.path / VOCABULARY_FOLDER / f"{field}.parquet"

    def target_file(self, field: str) -> Path:
        """Return the parquet file of a target-encoded field: id int32, rows int64, clicks int64."""
        return self.path / TARGET_FOLDER / f"{field}.parquet"

    def columns(self) -> dict[str, pl.DataType]:
        """Names and types of the columns of a part, in order."""
        columns: dict[str, pl.DataType] = {LABEL: pl.Int8()}
        columns |= {name: pl.Float32() for name in self.dense_columns}
        for field in self.fields:
            columns[field] = pl.Int32()
            if self.manifest.counts:
                columns[f"{field}_count"] = pl.Int32()
        return columns

    def _check_files(self) -> None:
        for split, info in self.manifest.splits.items():
            for part in info.files:
                _check_parquet(self.path / part.path, dict(self.columns()), part.rows)
            if sum(part.rows for part in info.files) != info.rows:
                raise DatasetError(f"{self.path / MANIFEST}: the rows of split {split} do not add up")
        vocabulary: dict[str, pl.DataType] = {"id": pl.Int32(), "value": pl.String(), "count": pl.Int64()}
        for field, size in self.sizes.items():
            _check_parquet(self.vocabulary_file(field), vocabulary, size)
        target: dict[str, pl.DataType] = {"id": pl.Int32(), "rows": pl.Int64(), "clicks": pl.Int64()}
        for field in self.manifest.encoding.target_encoded:
            _check_parquet(self.target_file(field), target, self.sizes[field])


def collect_rows(rows: pl.LazyFrame, *, subject: str) -> pl.DataFrame:
    """Read rows of a dataset.

    Parameters
    ----------
    subject:
        How the message begins where a file is damaged; "damaged" follows.

    Raises
    ------
    DatasetError
        A file is damaged.
    """
    try:
        return rows.collect(engine="streaming")
    except READ_ERRORS as error:
        raise DatasetError(f"{subject} damaged ({first_line(error)}): prepare the dataset again") from error


def read_table(file: Path, columns: Sequence[str]) -> pl.DataFrame:
    """Return columns of a small parquet file of a dataset or run.

    Raises
    ------
    DatasetError
        It is missing or damaged.
    """
    try:
        return pl.read_parquet(file, columns=list(columns), glob=False)
    except READ_ERRORS as error:
        reason = "is missing" if isinstance(error, FileNotFoundError) else "is damaged"
        raise DatasetError(f"{file} {reason}") from error


def _parse_manifest(document: bytes, file: Path) -> Manifest:
    try:
        version = _Versioned.model_validate_json(document).format_version
        if version > FORMAT_VERSION:
            raise DatasetError(
                f"{file}: format version {version} is newer than this program reads ({FORMAT_VERSION}): "
                "update stampede-ctr"
            )
        return Manifest.model_validate_json(document)
    except ValidationError as error:
        raise DatasetError.of_validation(
            error, f"{file} is damaged", mend="prepare the dataset again"
        ) from error


def _check_parquet(file: Path, columns: dict[str, pl.DataType], rows: int) -> None:
    try:
        frame = pl.scan_parquet(file, glob=False)
        found = dict(frame.collect_schema())
        count = frame.select(pl.len()).collect().item()
    except FileNotFoundError as error:
        raise DatasetError(f"{file} is missing: prepare the dataset again") from error
    except READ_ERRORS as error:
        raise DatasetError(f"{file} is damaged: prepare the dataset again") from error
    if found != columns:
        odd = sorted(set(found) ^ set(columns)) or [n for n in columns if found[n] != columns[n]]
        raise DatasetError(f"{file}: column {odd[0]} is not as the manifest says: prepare the dataset again")
    if count != rows:
        raise DatasetError(f"{file} has {count} rows where the manifest says {rows}: prepare it again")
