"""Small logs to prepare, and what a dataset holds as plain values."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import polars.selectors as cs
import pytest
from polars.testing import assert_frame_equal
from tests.pipeline.reference import Log, Prepared

from stampede import StampedeError
from stampede.pipeline import Dataset, PrepareOptions, Schema, SplitRule, prepare

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
REAL = ROOT.parent / "shared" / "data" / "real"

CRITEO, AVAZU = Schema.preset("criteo"), Schema.preset("avazu")
SMALL = Schema(name="small", label="y", dense=("n", "m"), categorical=("a", "b"))
TIMED = Schema(name="timed", label="y", dense=("n",), categorical=("a",), time="t")

EVERY_ROW = SplitRule(valid_fraction=0.0, test_fraction=0.0)
KEEP_ALL = PrepareOptions(split=EVERY_ROW, min_count=1)
SKIP = PrepareOptions(split=EVERY_ROW, min_count=1, bad_rows="skip")


@contextmanager
def memory_folder() -> Iterator[Path]:
    """A folder that is removed at the end, in memory where the system has such a place."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder)


def log_of(schema: Schema, *, separator: str = "\t", header: bool = False) -> Log:
    """The reference's words for a schema."""
    return Log(
        label=schema.label,
        dense=schema.dense,
        categorical=schema.categorical,
        columns=schema.columns,
        time=schema.time,
        separator=separator,
        header=header,
        null_values=schema.null_values,
    )


def good_rows(count: int, *, schema: Schema = SMALL, separator: str = "\t") -> list[str]:
    """Rows that can be used, few of them alike."""
    rows = []
    for i in range(count):
        fields = {"y": i % 3 == 0, "n": i * 7 % 11, "m": i / 4 - 1, "a": f"a{i % 5}", "b": f"b{i * i % 7}"}
        fields["t"] = f"141021{i // 5 % 24:02}"
        rows.append(
            separator.join(str(int(f) if isinstance(f, bool) else f) for f in map(fields.get, schema.columns))
        )
    return rows


def write(file: Path, lines: Sequence[str | bytes], *, end: bytes = b"\n") -> Path:
    """Write lines, the last one with its line end too."""
    file.write_bytes(b"".join((line if isinstance(line, bytes) else line.encode()) + end for line in lines))
    return file


def prepare_lines(
    folder: Path, lines: Sequence[str | bytes], *, schema: Schema = SMALL, options: PrepareOptions = KEEP_ALL
) -> Dataset:
    """Prepare a file of these lines."""
    return prepare(schema, [write(folder / "log.txt", lines)], folder / "out", options=options, force=True)


def refusal(
    folder: Path,
    files: Sequence[str | Path],
    *,
    schema: Schema = SMALL,
    options: PrepareOptions = KEEP_ALL,
    engine: str = "polars",
    error: type[StampedeError] = StampedeError,
) -> Any:
    """The error that preparing these files gives; it is one line and leaves nothing behind."""
    with pytest.raises(error) as caught:
        prepare(schema, files, folder / "out", options=options, engine=engine)  # type: ignore[arg-type]
    message = str(caught.value)
    assert message
    assert "\n" not in message
    assert not [path for path in folder.iterdir() if path.name.startswith((".out", "out"))]
    return caught.value


def parts(dataset: Dataset) -> dict[str, pl.DataFrame]:
    """The rows of each split."""
    return {split: dataset.scan(split).collect() for split in dataset.rows}


def vocabularies(dataset: Dataset) -> dict[str, pl.DataFrame]:
    """The vocabulary file of each field."""
    return {field: pl.read_parquet(dataset.vocabulary_file(field), glob=False) for field in dataset.fields}


def values(dataset: Dataset, field: str) -> dict[str, int]:
    """Values of a field that have an id, with their counts."""
    book = vocabularies(dataset)[field].drop_nulls("value")
    return dict(zip(book["value"], book["count"], strict=True))


def rejected(dataset: Dataset) -> list[dict[str, Any]]:
    """The rows that were left out, the names of their files without a folder."""
    file = dataset.path / "rejected.parquet"
    if not file.exists():
        return []
    rows = pl.read_parquet(file).to_dicts()
    return [row | {"file": Path(row["file"]).name} for row in rows]


def assert_same_dataset(one: Dataset, other: Dataset, *, maxulp: int = 0) -> None:
    """Both hold the same rows, ids, counts and statistics, bit for bit; floats to ``maxulp`` last places."""
    assert one.rows == other.rows
    theirs = parts(other) | vocabularies(other)
    for name, frame in (parts(one) | vocabularies(one)).items():
        assert frame.schema == theirs[name].schema
        numbers = frame.select(cs.float()).columns if maxulp else []
        for column in numbers:
            found, expected = frame[column].to_numpy(), theirs[name][column].to_numpy()
            np.testing.assert_array_max_ulp(found, expected, maxulp=maxulp)
        rest, expected_rest = frame.drop(numbers), theirs[name].drop(numbers)
        if not rest.equals(expected_rest):
            assert_frame_equal(rest, expected_rest, check_exact=True)  # says where they differ
    same = {"log", "rejected"}
    assert one.manifest.model_dump(exclude=same) == other.manifest.model_dump(exclude=same)


def assert_is(dataset: Dataset, expected: Prepared) -> None:
    """The dataset holds what the reference says: floats to one unit in the last place, all else exactly."""
    assert dataset.rows == {split: len(rows) for split, rows in expected.splits.items()}
    for split, frame in parts(dataset).items():
        assert frame.columns == expected.columns
        for name in frame.columns:
            ours, theirs = frame[name], [row[name] for row in expected.splits[split]]
            if ours.dtype == pl.Float32:
                np.testing.assert_array_max_ulp(
                    ours.to_numpy(), np.array(theirs, np.float32), maxulp=1
                )  # fmt: skip
            else:
                assert ours.to_list() == theirs, name
    for field, book in vocabularies(dataset).items():
        assert book.schema == {"id": pl.Int32, "value": pl.String, "count": pl.Int64}
        assert book.rows() == expected.vocabularies[field]
    for info in dataset.manifest.fields:
        assert (info.name, info.null, info.rare) == (
            info.name,
            expected.null[info.name],
            expected.rare[info.name],
        )
        assert info.size == len(expected.vocabularies[info.name])
    files = [(str(row["file"]), row["line"], row["column"]) for row in rejected(dataset)]
    assert files == [(Path(file).name, line, column) for file, line, column in expected.rejected]
    assert dataset.manifest.rejected == len(expected.rejected)
