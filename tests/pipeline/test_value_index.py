"""The index of values gives the ids that each vocabulary gives."""

from __future__ import annotations

import random

import numpy as np
import polars as pl
import pytest

from stampede.pipeline.arrow_views import StringViews
from stampede.pipeline.value_index import ValueIndex
from stampede.pipeline.vocabulary import Vocabulary


def texts(count: int, seed: int) -> list[str]:
    """Texts of 1 to 40 bytes; many begin or end alike, some have NUL or letters of several bytes."""
    draw = random.Random(seed)
    return [
        draw.choice(["", "a", "\0", "é", "the same beginning ", "x" * 11, "y" * 12])
        + f"{draw.randrange(3 * count):x}"
        + draw.choice(["", "", "\0", " the same end"])
        for _ in range(count)
    ]


def vocabulary(values: list[str], **options: int) -> Vocabulary:
    counted = pl.DataFrame({"value": values}).group_by("value").len("count")
    return Vocabulary.build([counted], **options)


@pytest.mark.parametrize("buckets", [0, 7])
def test_ids_are_those_of_the_vocabularies(buckets: int) -> None:
    books = {
        "many": vocabulary(texts(20_000, seed=1), hash_buckets=buckets),
        "few": vocabulary(texts(3, seed=2)),
        "none": vocabulary([]),
    }
    index = ValueIndex.of(books)
    some = {name: [None, *texts(5_000, seed=k), *texts(9_999, seed=1)] for k, name in enumerate(books)}
    rows = pl.DataFrame(some, schema=dict.fromkeys(books, pl.String))
    ids = np.zeros((rows.height, 3), np.int32)

    index.look_up(rows, ids)

    expected = rows.select(book.ids(pl.col(name)).alias(name) for name, book in books.items())
    for place, name in enumerate(books):
        assert ids[:, place].tolist() == expected[name].to_list()
    assert 3 < ids[:, 0].max() < books["many"].size


def test_some_columns_of_a_slice_in_another_order() -> None:
    books = {"a": vocabulary(["p", "q"]), "b": vocabulary(["r", "s" * 20])}
    index = ValueIndex.of(books)
    rows = pl.DataFrame({"b": ["s" * 20, "r", None, "t"], "a": ["p", None, "q", "r"]}).slice(1)
    ids = np.full((3, 2), -5, np.int32)

    index.look_up(rows.select("b"), ids)
    assert ids.tolist() == [[-5, 3], [-5, 1], [-5, 2]]
    index.look_up(rows.select("b", "a"), ids)
    assert ids.tolist() == [[1, 3], [4, 1], [2, 2]]


def test_words_for_null() -> None:
    index = ValueIndex.of(
        {"a": vocabulary(["p", "q" * 30])}, null_values=("NULL", "-", "far too long a word")
    )
    ids = np.zeros((5, 1), np.int32)

    index.look_up(pl.DataFrame({"a": ["NULL", "", "-", "p", "q" * 30]}), ids)

    assert ids[:, 0].tolist() == [1, 1, 1, 3, 4]
    assert index.null_table == 1


def test_only_strings_have_views() -> None:
    with pytest.raises(TypeError, match="strings"):
        StringViews.of(pl.Series([1, 2]))


def test_a_computed_value_that_spells_a_null_word_is_no_null() -> None:
    books = {"text": vocabulary(["1"]), "hour_of_day": vocabulary(["1"])}
    index = ValueIndex.of(books, null_values=["0"], as_text=["text"])
    rows = pl.DataFrame({"text": ["0", "1", "2"], "hour_of_day": ["0", "1", "2"]})
    ids = np.zeros((3, 2), np.int32)

    index.look_up(rows, ids)

    assert ids.tolist() == [[1, 2], [3, 3], [2, 2]]
