"""Rows of a later split -> vocabularies with the values that they bring; every id stays what it is.

What a growth does to a dataset: the vocabularies gain ids and counts, the new split is encoded by them, and
all else stays as it is: dense statistics are those of the first fit, and the rows of other splits keep their
ids (a value that was rare there stays id 2 there) and the counts of their time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from stampede import ConfigError
from stampede.pipeline.dataset import NULL_ID, UNSEEN_ID, Dataset, FieldInfo, Growth, Manifest, Split
from stampede.pipeline.encode import Encoder, field_values
from stampede.pipeline.engine_nvtabular import WORKFLOW_FOLDER
from stampede.pipeline.fit import count_in_parts, passes_to_count
from stampede.pipeline.progress import Progress
from stampede.pipeline.vocabulary import Vocabulary

Vocabularies = Mapping[str, Vocabulary]


@dataclass(frozen=True)
class GrowOptions:
    """How a vocabulary grows: new values that occur less often than ``min_count`` in the new rows get no id.

    None takes the dataset's own ``min_count``.
    """

    min_count: int | None = None

    def __post_init__(self) -> None:
        if self.min_count is not None and self.min_count < 1:
            raise ConfigError(f"--min-count {self.min_count}: it must be 1 or more")


def check_growable(dataset: Dataset) -> None:
    """Raise unless the vocabularies of a dataset can grow.

    Raises
    ------
    ConfigError
        Names the option of the dataset that does not go with it.
    """
    encoding = dataset.manifest.encoding
    for flag, found, reason in (
        ("--count-features", encoding.count_features, "its columns hold counts, which a growth changes"),
        ("--target-encode", encoding.target_encoded, "a new id has no click rate of training rows"),
        (
            "--engine nvtabular",
            (dataset.path / WORKFLOW_FOLDER).exists(),
            "the workflow in it would go on giving the old ids",
        ),
    ):
        if found:
            raise ConfigError(
                f"--grow-vocab: {dataset.path} was made with {flag}, and {reason}: leave out --grow-vocab, "
                "or prepare the dataset without that option"
            )


def grow_vocabularies(
    encoder: Encoder,
    rows: pl.LazyFrame,
    *,
    total: int,
    min_count: int,
    max_size: int | None,
    memory: int,
    progress: Progress,
) -> dict[str, Vocabulary]:
    """Return the vocabularies of an encoder with the values that typed rows bring.

    Parameters
    ----------
    rows:
        Typed rows (:mod:`stampede.pipeline.rows`), ``total`` of them.
    min_count, max_size:
        See :meth:`Vocabulary.grown`.
    memory:
        Bytes that the counts of a field may take at a time.
    """
    progress.start("fit", total)
    values = field_values(encoder.schema, encoder.encoding)
    passes = passes_to_count(rows, values, total=total, memory=memory)
    grown, counted_rows = {}, 0
    for number, (name, value) in enumerate(values.items(), 1):
        counted = count_in_parts(rows, value, passes[name])
        grown[name] = encoder.vocabularies[name].grown(counted, min_count=min_count, max_size=max_size)
        before, counted_rows = counted_rows, total * number // len(values)
        progress.advance(counted_rows - before)
    return grown


def grown_manifest(
    manifest: Manifest, old: Vocabularies, new: Vocabularies, *, split: Split, rows: int, min_count: int
) -> Manifest:
    """Return a manifest whose fields have the new sizes, and that says what the growth was."""
    fields = []
    for info in manifest.fields:
        before, after = old[info.name].counts, new[info.name].counts
        null, rare = (int(after[reserved] - before[reserved]) for reserved in (NULL_ID, UNSEEN_ID))
        fields.append(
            FieldInfo(name=info.name, size=len(after), null=info.null + null, rare=info.rare + rare)
        )
    ids = {name: vocabulary.size - old[name].size for name, vocabulary in new.items()}
    growth = Growth(split=split, rows=rows, min_count=min_count, ids=ids)
    return manifest.model_copy(update={"fields": tuple(fields), "growths": (*manifest.growths, growth)})


def are_grown_from(new: Vocabularies, old: Vocabularies) -> bool:
    """Whether some vocabularies are others with further ids: the same fields, every id what it was."""
    return list(new) == list(old) and all(new[name].is_grown_from(older) for name, older in old.items())


def ids_before(new: Vocabularies, old: Vocabularies) -> list[npt.NDArray[np.int32]]:
    """Return for each field the id that each id had before; see :meth:`Vocabulary.ids_before`."""
    return [vocabulary.ids_before(old[name]) for name, vocabulary in new.items()]
