"""What decides what a dataset holds, the input excepted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from stampede import ConfigError
from stampede.pipeline.dataset import DenseMode, Encoding, SplitRule
from stampede.pipeline.split import check_fractions
from stampede.pipeline.spool import BadRows

MOST_BUCKETS = 100_000_000
MOST_FOLDS = 100


@dataclass(frozen=True)
class PrepareOptions:
    """Everything that decides what a dataset holds, the input excepted.

    Attributes
    ----------
    split:
        How rows are divided.
    min_count, max_size, hash_buckets:
        Which values of a field get an id of their own; see :class:`stampede.pipeline.vocabulary.Vocabulary`.
    dense_mode, dense_null_flag:
        How dense features become model inputs, and whether a 0/1 column says where each was empty.
    crosses, count_features, target_encode, folds:
        Further columns; see :class:`stampede.pipeline.dataset.Encoding`.
    fit_on:
        Rows that vocabularies and statistics come from. ``all`` lets test rows leak into them.
    counts:
        Whether parts hold the count of each id.
    bad_rows:
        Whether a row that cannot be used stops the job or is left out and listed.
    """

    split: SplitRule = field(default_factory=SplitRule)
    min_count: int = 2
    max_size: int | None = None
    hash_buckets: int = 0
    dense_mode: DenseMode = DenseMode.LOG
    dense_null_flag: bool = False
    crosses: tuple[tuple[str, str], ...] = ()
    count_features: bool = False
    target_encode: tuple[str, ...] = ()
    folds: int = 5
    fit_on: Literal["train", "all"] = "train"
    counts: bool = True
    bad_rows: BadRows = "stop"

    def __post_init__(self) -> None:
        check_fractions(self.split)
        for flag, value, known in (
            ("--fit-on", self.fit_on, ("train", "all")),
            ("--bad-rows", self.bad_rows, ("stop", "skip")),
            ("--dense", self.dense_mode, tuple(DenseMode)),
        ):
            if value not in known:
                raise ConfigError(f"{flag} {value}: choose {' or '.join(known)}")
        if self.min_count < 1:
            raise ConfigError(f"--min-count {self.min_count}: it must be 1 or more")
        if self.max_size is not None and self.max_size < 1:
            raise ConfigError(f"--max-size {self.max_size}: it must be 1 or more")
        if not 0 <= self.hash_buckets <= MOST_BUCKETS:
            raise ConfigError(f"--hash-buckets {self.hash_buckets}: it must be between 0 and {MOST_BUCKETS}")
        for one, other in self.crosses:
            if one == other:
                raise ConfigError(f"--cross {one},{other}: name two different fields")
        for flag, given in (("--cross", self.crosses), ("--target-encode", self.target_encode)):
            if len(set(given)) < len(given):
                raise ConfigError(f"{flag}: one is given twice")
        if not 2 <= self.folds <= MOST_FOLDS:
            raise ConfigError(f"--folds {self.folds}: it must be between 2 and {MOST_FOLDS}")
        if self.dense_null_flag and self.dense_mode == DenseMode.LOG_BUCKET:
            raise ConfigError(
                "--dense-null-flag with --dense log-bucket: there an empty feature has an id of its own"
            )

    @property
    def encoding(self) -> Encoding:
        """Which columns the options ask for."""
        return Encoding(
            dense_mode=self.dense_mode,
            dense_null_flag=self.dense_null_flag,
            crosses=self.crosses,
            count_features=self.count_features,
            target_encoded=self.target_encode,
            folds=self.folds,
        )
