"""Encoding block by block in memory gives what :func:`stampede.pipeline.transform.transform` gives."""

from __future__ import annotations

import gzip
import os
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import zstandard
from tests.pipeline.logs import (
    CRITEO,
    DATA,
    KEEP_ALL,
    SMALL,
    TIMED,
    prepare_lines,
    write,
)

from stampede import InputError, StampedeError
from stampede.pipeline import DenseMode, Encoder, PrepareOptions, Schema, parquet_rows
from stampede.pipeline.stream_encode import encode_stream
from stampede.pipeline.transform import transform

WORDS = SMALL.model_copy(update={"null_values": ("NULL", "-1", "n/a")})
LONG_WORDS = SMALL.model_copy(update={"null_values": ("there is none", "-")})
NO_NUMBERS = Schema(name="ids", label="y", categorical=("a", "b"))
COMMAS = TIMED.model_copy(update={"separator": ",", "time_format": "yymmddhh"})

CASES: dict[str, tuple[Schema, dict[str, Any]]] = {
    "log": (SMALL, {}),
    "minmax and null flags": (SMALL, {"dense_mode": DenseMode.MINMAX, "dense_null_flag": True}),
    "standard and count features": (SMALL, {"dense_mode": DenseMode.STANDARD, "count_features": True}),
    "log buckets": (SMALL, {"dense_mode": DenseMode.LOG_BUCKET, "min_count": 2}),
    "buckets": (SMALL, {"hash_buckets": 5, "min_count": 3}),
    "crosses": (SMALL, {"crosses": (("a", "b"),), "hash_buckets": 3, "min_count": 2}),
    "targets": (SMALL, {"target_encode": ("b", "a"), "max_size": 5}),
    "words for null": (WORDS, {"dense_null_flag": True}),
    "long words for null": (LONG_WORDS, {}),
    "no numbers": (NO_NUMBERS, {"count_features": True}),
    "time": (TIMED, {}),
    "time with commas": (COMMAS, {"dense_mode": DenseMode.NONE, "target_encode": ("hour_of_day",)}),
    "everything": (
        TIMED,
        {
            "dense_mode": DenseMode.LOG_BUCKET,
            "crosses": (("n", "hour_of_day"), ("a", "weekday")),
            "count_features": True,
            "target_encode": ("a_x_weekday",),
            "hash_buckets": 4,
        },
    ),
}

NUMBERS = ("", "0", "-0", "7", "-12", "3.25", "-0.1", "007", "123456789012345", "99999999999999999999", "1e3")
ODD_NUMBERS = (" 5", "5 ", "  ", ".5", "5.", "+1", "1E-3", "-.25", "0.1234567890123456789", "NULL", "-1")
ALIKE = "a value that is longer than a view"


def value(draw: random.Random) -> str:
    """Short, long, empty and odd texts; some of them differ in the last byte alone."""
    kind = draw.randrange(8)
    if kind == 0:
        return draw.choice(["", "", "NULL", "-1", "n/a", "there is none", "-", " "])
    if kind == 1:
        return ALIKE + "!" * draw.randrange(4)
    if kind == 2:
        return "twelve bytes"[: draw.randrange(8, 13)] + draw.choice(["", "x"])
    if kind == 3:
        return draw.choice(
            ["漢字", "naïve", "\x00", "a\x00", '"', 'a "quoted" one', "e\u0301", "1.0", "x" * 300]
        )
    return f"v{draw.randrange(9) ** 2:x}"


def line(schema: Schema, draw: random.Random, *, odd: float) -> str:
    fields: dict[str, str] = {"y": str(draw.randrange(2))}
    for name in schema.dense:
        word = draw.choice(ODD_NUMBERS if draw.random() < odd else NUMBERS)
        fields[name] = "" if word == "NULL" and schema is not WORDS else word
    for name in schema.categorical:
        fields[name] = value(draw)
        if schema.separator == ",":
            fields[name] = quoted(fields[name], draw)
    if schema.time:
        hour = f"1410{draw.randrange(1, 29):02}{draw.randrange(24):02}"
        iso = f"2014-10-0{draw.randrange(1, 9)} 0{draw.randrange(9)}:00:00"
        fields["t"] = iso if draw.random() < odd and schema.time_format == "auto" else hour
    return (schema.separator or "\t").join(fields[name] for name in schema.columns)


def quoted(text: str, draw: random.Random) -> str:
    if '"' in text or draw.random() < 0.1:
        return '"' + text.replace('"', '""') + draw.choice(["", ","]) + '"'
    return text


def lines(schema: Schema, count: int, seed: int, *, odd: float = 0.02) -> list[str]:
    draw = random.Random(seed)
    return [line(schema, draw, odd=odd) for _ in range(count)]


def fitted(folder: Path, schema: Schema, options: dict[str, Any]) -> Encoder:
    chosen: PrepareOptions = replace(KEEP_ALL, **options)
    return Encoder.of_dataset(
        prepare_lines(folder, lines(schema, 300, seed=1), schema=schema, options=chosen)
    )


def check_same(encoder: Encoder, files: Sequence[Path], folder: Path, **how: Any) -> None:
    """Both ways give the same numbers and ids, bit for bit, or the same error."""
    refused: StampedeError | None = None
    try:
        expected = pl.read_parquet(transform(encoder, files, folder / "encoded").file)
    except StampedeError as error:
        refused = error
    if refused is not None:
        with pytest.raises(type(refused)) as caught:
            list(encode_stream(encoder, files, threads=2, **how))
        assert str(caught.value) == str(refused)
        return
    blocks = list(encode_stream(encoder, files, threads=2, **how))
    n_dense, n_fields = len(encoder.dense_columns), len(encoder.vocabularies)
    dense = np.concatenate([np.empty((0, n_dense), np.float32), *(block.dense for block in blocks)])
    ids = np.concatenate([np.empty((0, n_fields), np.int32), *(block.ids for block in blocks)])
    assert dense.dtype == np.float32
    assert ids.dtype == np.int32
    for place, name in enumerate(encoder.vocabularies):
        assert ids[:, place].tolist() == expected[name].to_list(), name
    for place, name in enumerate(encoder.dense_columns):
        column = expected[name].to_numpy()
        assert dense[:, place].tobytes() == column.tobytes(), name


@pytest.mark.parametrize("name", CASES)
def test_text_is_encoded_as_the_definition_says(name: str, tmp_path: Path) -> None:
    schema, options = CASES[name]
    encoder = fitted(tmp_path, schema, options)
    few_odd = write(tmp_path / "few.txt", lines(schema, 400, seed=2))
    all_odd = write(tmp_path / "odd.txt", lines(schema, 150, seed=3, odd=0.5), end=b"\r\n")
    blank = write(tmp_path / "blank.txt", ["", "  ", *lines(schema, 20, seed=4), "", " "])
    blank.write_bytes(blank.read_bytes()[:-1] + b"\n" + lines(schema, 1, seed=5)[0].encode())

    check_same(encoder, [few_odd, all_odd, blank], tmp_path)
    check_same(encoder, [few_odd, all_odd, blank], tmp_path, block_bytes=700)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("typed", [False, True])
def test_parquet_is_encoded_as_the_definition_says(
    name: str, typed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema, options = CASES[name]
    encoder = fitted(tmp_path, schema, options)
    tabs = schema.model_copy(update={"separator": "\t"})
    rows = [row.split("\t") for row in lines(tabs, 300, seed=6)]
    frame = pl.DataFrame(rows, schema=list(schema.columns), orient="row", strict=False)
    if typed:
        kinds = [pl.Int64, pl.Float64]
        numbers = {n: pl.col(n).cast(kinds[k], strict=False) for k, n in enumerate(schema.dense)}
        texts = {n: pl.when(pl.col(n) != "").then(pl.col(n)) for n in schema.categorical}
        frame = frame.with_columns(**numbers, **texts)
    file = tmp_path / "rows.parquet"
    frame.write_parquet(file, row_group_size=70)
    monkeypatch.setattr(parquet_rows, "ROWS_PER_BLOCK", 64)

    check_same(encoder, [file], tmp_path)


@pytest.mark.parametrize(
    "dtype", [pl.Float32, pl.Float64, pl.UInt8, pl.Int64, pl.Boolean, pl.Decimal(10, 2), pl.String]
)
def test_numbers_of_parquet_are_what_their_text_says(dtype: Any, tmp_path: Path) -> None:
    encoder = fitted(tmp_path, SMALL, {"dense_mode": DenseMode.NONE})
    numbers = [0, 1, None, 1, 0] if dtype == pl.Boolean else [0.1, 3, None, 16_777_217, 200.75]
    column = pl.Series("n", numbers, dtype=pl.Float64, strict=False)
    column = (column % 256 if dtype == pl.UInt8 else column).cast(dtype, strict=False)
    frame = pl.DataFrame(
        {"n": column, "m": [2**53 + 1, -(2**62), 0, 1, None], "a": "x", "b": [1, 2, 3, 4, 5]}
    )
    frame.write_parquet(tmp_path / "rows.parquet")

    check_same(encoder, [tmp_path / "rows.parquet"], tmp_path)


BAD: dict[str, tuple[str | bytes, Schema]] = {
    "a word": ("1\tx\t1\ta\tb", SMALL),
    "infinite": ("1\t1\tinf\ta\tb", SMALL),
    "beyond float32": ("1\t1e39\t1\ta\tb", SMALL),
    "sign alone": ("1\t-\t1\ta\tb", SMALL),
    "two points": ("1\t1.2.3\t1\ta\tb", SMALL),
    "too few": ("1\t1\t1\ta", SMALL),
    "too many": ("1\t1\t1\ta\tb\t", SMALL),
    "one field": ("1", SMALL),
    "not UTF-8": (b"1\t1\t1\t\xff\tb", SMALL),
    "no time": ("1\t2\ta\t14103924", TIMED),
    "a time of letters": ("1\t2\ta\tnoon", TIMED),
    "quotes": ('1,2,"a,14102104', COMMAS),
}


@pytest.mark.parametrize("place", [0, 57, 199])
@pytest.mark.parametrize("name", BAD)
def test_a_bad_row_is_named_as_the_definition_names_it(name: str, place: int, tmp_path: Path) -> None:
    bad, schema = BAD[name]
    encoder = fitted(tmp_path, schema, {})
    rows: list[str | bytes] = list(lines(schema, 200, seed=7))
    rows[place] = bad
    log = write(tmp_path / "new.txt", rows)
    with pytest.raises(InputError) as error:
        list(encode_stream(encoder, [log], threads=2, block_bytes=1000))

    assert error.value.line == place + 1
    check_same(encoder, [log], tmp_path, block_bytes=1000)


@pytest.mark.parametrize("number", [float("inf"), float("nan"), 1e39])
def test_a_number_of_parquet_that_is_none_is_named(number: float, tmp_path: Path) -> None:
    encoder = fitted(tmp_path, SMALL, {})
    frame = pl.DataFrame({"y": [0, 1, 1], "n": [1.0, 2.0, number], "m": [1, 2, 3], "a": "x", "b": "y"})
    frame.write_parquet(tmp_path / "rows.parquet")

    with pytest.raises(InputError, match=r"line 3, column n: '.*' is not a finite number"):
        list(encode_stream(encoder, [tmp_path / "rows.parquet"], threads=1))


@pytest.mark.parametrize("file", sorted(path.name for path in (DATA / "dirty").glob("*.*sv")))
def test_dirty_files_are_read_or_refused_alike(file: str, tmp_path: Path, criteo_rows: Path) -> None:
    from stampede.pipeline import prepare

    rows = gzip.decompress(criteo_rows.read_bytes()).split(b"\n")[:200]
    dataset = prepare(CRITEO, [write(tmp_path / "log.tsv", rows)], tmp_path / "out", options=KEEP_ALL)

    check_same(Encoder.of_dataset(dataset), [DATA / "dirty" / file], tmp_path, block_bytes=2000)


def test_every_way_of_writing_a_text_is_read(tmp_path: Path) -> None:
    encoder = fitted(tmp_path, SMALL, {})
    rows = lines(SMALL, 100, seed=8)
    plain = write(tmp_path / "1.tsv", rows)
    packed = tmp_path / "2.tsv.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()) * 2)
    zstd = tmp_path / "3.tsv.zst"
    zstd.write_bytes(zstandard.compress(plain.read_bytes()))
    header = write(tmp_path / "4.txt", ["\ufeffb\ta\textra\tm\tn", "b\ta\t?\t1\t2", "", "v1\tv4\t\t\t"])
    unlabelled = write(tmp_path / "5.txt", [row.split("\t", 1)[1] for row in rows])
    empty = write(tmp_path / "6.txt", [])

    check_same(encoder, [plain, packed, zstd, header, unlabelled, empty], tmp_path, block_bytes=500)


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    encoder = fitted(tmp_path, SMALL, {})
    packed = tmp_path / "log.gz"
    packed.write_bytes(
        gzip.compress(write(tmp_path / "log.txt", lines(SMALL, 2000, seed=9)).read_bytes())[:-9]
    )

    with pytest.raises(InputError, match="damaged or truncated archive"):
        list(encode_stream(encoder, [packed], threads=2, block_bytes=1000))


def test_a_file_that_changes_meanwhile_is_refused(tmp_path: Path) -> None:
    encoder = fitted(tmp_path, SMALL, {})
    log = write(tmp_path / "new.txt", lines(SMALL, 500, seed=10))
    blocks = encode_stream(encoder, [log], threads=1, block_bytes=500)
    next(blocks)
    with log.open("ab") as file:
        file.write(b"0\t1\t2\ta\tb\n")

    with pytest.raises(InputError, match="changed while it was read"):
        list(blocks)


def test_threads_end_when_nobody_wants_more(tmp_path: Path) -> None:
    encoder = fitted(tmp_path, SMALL, {})
    log = write(tmp_path / "new.txt", lines(SMALL, 500, seed=11))
    before = threading.active_count()
    blocks = encode_stream(encoder, [log], threads=2, block_bytes=500)
    next(blocks)
    blocks.close()

    assert threading.active_count() == before


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress])
def test_standard_input_is_read_like_a_file(
    pack: Callable[[bytes], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = fitted(tmp_path, SMALL, {})
    log = write(tmp_path / "new.txt", ["y\tn\tm\ta\tb", *lines(SMALL, 500, seed=12)])
    expected = list(encode_stream(encoder, [log], threads=1))
    reader, writer = os.pipe()
    monkeypatch.setattr("stampede.pipeline.text_blocks.STDIN_DESCRIPTOR", reader)

    def feed() -> None:
        packed = pack(log.read_bytes())
        for start in range(0, len(packed), 999):
            os.write(writer, packed[start : start + 999])
        os.close(writer)

    feeder = threading.Thread(target=feed)
    feeder.start()
    found = list(encode_stream(encoder, ["-"], threads=2, block_bytes=700))
    feeder.join()
    os.close(reader)

    assert np.concatenate([block.ids for block in found]).tolist() == expected[0].ids.tolist()
    assert np.concatenate([block.dense for block in found]).tobytes() == expected[0].dense.tobytes()
