"""Real logs in circulation are read rightly: excerpts always, the whole samples where they are at hand."""

from __future__ import annotations

import gzip
from pathlib import Path

import polars as pl
import pytest
from tests.pipeline.logs import (
    AVAZU,
    CRITEO,
    DATA,
    EVERY_ROW,
    KEEP_ALL,
    REAL,
    parts,
    refusal,
    rejected,
    values,
)

from stampede.pipeline import PrepareOptions, Schema, prepare
from stampede.pipeline.spool import write_spool

SINGLE = PrepareOptions(split=EVERY_ROW, min_count=4, bad_rows="stop")

INDEXED_AVAZU = """
label = "click"
time = "hour"
drop = ["index", "id"]
header = false
categorical = [
    "C1", "banner_pos", "site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category",
    "device_id", "device_ip", "device_model", "device_type", "device_conn_type",
    "C14", "C15", "C16", "C17", "C18", "C19", "C20", "C21",
]
columns = [
    "index", "id", "click", "hour", "C1", "banner_pos", "site_id", "site_domain", "site_category", "app_id",
    "app_domain", "app_category", "device_id", "device_ip", "device_model", "device_type", "device_conn_type",
    "C14", "C15", "C16", "C17", "C18", "C19", "C20", "C21",
]
"""


@pytest.fixture
def indexed_avazu(tmp_path: Path) -> Schema:
    """A user's own schema: Avazu without a header, with a row number in front and times as ISO text."""
    file = tmp_path / "indexed.toml"
    file.write_text(INDEXED_AVAZU)
    return Schema.load(file)


EXCERPTS = [
    ("criteo_excerpt.tsv", CRITEO, 300, 78),
    ("criteo_comma.csv", CRITEO, 200, 32),
    ("criteo_id_header_crlf.csv", CRITEO, 200, 44),
    ("avazu_excerpt.csv", AVAZU, 303, 45),
    ("avazu_float_id.csv", AVAZU, 100, 20),
]


@pytest.mark.parametrize(("name", "schema", "rows", "clicks"), EXCERPTS, ids=[case[0] for case in EXCERPTS])
def test_an_excerpt_holds_its_rows_and_clicks(
    name: str, schema: Schema, rows: int, clicks: int, tmp_path: Path
) -> None:
    dataset = prepare(schema, [DATA / name], tmp_path / "out", options=SINGLE)

    assert dataset.rows == {"train": rows}
    assert parts(dataset)["train"]["label"].sum() == clicks


def test_an_own_schema_reads_a_log_without_header_and_with_iso_times(
    indexed_avazu: Schema, tmp_path: Path
) -> None:
    dataset = prepare(indexed_avazu, [DATA / "avazu_index_timestamp.csv"], tmp_path / "out", options=KEEP_ALL)

    lines = (DATA / "avazu_index_timestamp.csv").read_text().splitlines()
    hours = [int(line.split(",")[3][11:13] or 0) for line in lines]  # midnight may be a bare date
    expected = {str(hour): hours.count(hour) for hour in set(hours)}
    assert dataset.rows == {"train": 300}
    assert values(dataset, "hour_of_day") == expected
    assert set(values(dataset, "C20")) == {line.split(",")[23] for line in lines}


@pytest.mark.parametrize(
    ("name", "schema", "rows"),
    [("criteo_unlabelled.tsv", CRITEO, 100), ("avazu_unlabelled_crlf.csv", AVAZU, 100)],
)
def test_a_log_without_labels_is_read_to_predict(
    name: str, schema: Schema, rows: int, tmp_path: Path
) -> None:
    spool = write_spool([DATA / name], schema, tmp_path / "spool", with_label=False)

    first = spool.scan().head(1).collect().row(0, named=True)
    assert spool.rows == rows
    line = (DATA / name).read_text().splitlines()[name.startswith("avazu")]
    last = schema.categorical[-1]
    assert first[last] == (line.split("\t" if schema is CRITEO else ",")[-1] or None)
    assert spool.rejected.is_empty()


def test_the_demo_log_is_what_its_readme_says() -> None:
    with gzip.open(DATA / "criteo_9k.tsv.gz") as file:
        lines = file.read().removesuffix(b"\n").split(b"\n")

    assert len(lines) == 9_000
    assert {line.count(b"\t") for line in lines} == {39}
    assert (DATA / "criteo_9k.tsv.gz").read_bytes()[4:8] == bytes(4)  # no time of packing


def text_of(file: Path) -> list[list[str]]:
    """Rows of a tab-separated log as plain Python reads them."""
    return [
        line.split("\t")
        for line in gzip.open(file, "rt", encoding="utf-8", newline="\n").read().split("\n")[:-1]
    ]


def test_real_values_are_kept_byte_for_byte(tmp_path: Path) -> None:
    file = DATA / "criteo_9k.tsv.gz"
    dataset = prepare(CRITEO, [file], tmp_path / "out", options=KEEP_ALL)
    rows = text_of(file)

    for number, field in enumerate(CRITEO.categorical, 14):
        column = [row[number] for row in rows]
        expected = pl.Series("value", column).filter(pl.Series(column) != "").value_counts()
        assert values(dataset, field) == dict(zip(expected["value"], expected["count"], strict=True))
    assert sum(row[-1] == "" for row in rows) == dataset.manifest.fields[-1].null > 3600
    looks_like_numbers = {value for value in values(dataset, "C3") if value.replace("e", "", 1).isdigit()}
    assert len(looks_like_numbers) > 50


# --- the whole samples, where they are at hand ----------------------------------------------------

needs_samples = pytest.mark.skipif(not REAL.is_dir(), reason="the real samples are not here")

SAMPLES: list[tuple[str, str, int, float]] = [
    ("criteo_137k.tsv.gz", "criteo", 137_139, 0.2568),
    ("criteo_10k.tsv.gz", "criteo", 10_758, 0.2557),
    ("criteo_comma_no_header_10k.csv.gz", "criteo", 10_075, 0.2204),
    ("criteo_id_header_4k.csv.gz", "criteo", 4_584, 0.2685),
    ("criteo_id_header_crlf_2k.csv.gz", "criteo", 1_999, 0.2091),
    ("criteo1tb_day0_10k.tsv.gz", "criteo", 10_000, 0.0265),
    ("avazu_75k.csv.gz", "avazu", 75_502, 0.1709),
    ("avazu_one_hour_no_newline_25k.csv.gz", "avazu", 24_999, 0.1746),
    ("avazu_float_id_20k.csv.gz", "avazu", 20_000, 0.1662),
    ("avazu_index_timestamp_no_header_23k.csv.gz", "indexed", 23_299, 0.1709),
]


@needs_samples
@pytest.mark.parametrize(("name", "log", "rows", "mean"), SAMPLES, ids=[sample[0] for sample in SAMPLES])
def test_a_sample_holds_its_rows_and_click_rate(
    name: str, log: str, rows: int, mean: float, indexed_avazu: Schema, tmp_path: Path
) -> None:
    schema = indexed_avazu if log == "indexed" else Schema.preset(log)

    dataset = prepare(schema, [REAL / name], tmp_path / "out", options=SINGLE)

    assert dataset.rows == {"train": rows}
    assert round(dataset.manifest.splits["train"].click_rate, 4) == mean
    assert not rejected(dataset)
    assert all(sum(pl.read_parquet(dataset.vocabulary_file(f))["count"]) == rows for f in dataset.fields)


@needs_samples
@pytest.mark.parametrize(
    ("name", "schema", "rows"),
    [("criteo_unlabelled_18k.tsv.gz", CRITEO, 18_181), ("avazu_unlabelled_crlf_10k.csv.gz", AVAZU, 9_999)],
)
def test_a_sample_without_labels_is_read_to_predict(
    name: str, schema: Schema, rows: int, tmp_path: Path
) -> None:
    assert write_spool([REAL / name], schema, tmp_path / "spool", with_label=False).rows == rows
    assert "click" in str(refusal(tmp_path, [REAL / name], schema=schema)) or schema is CRITEO


@needs_samples
def test_a_sample_split_by_time_keeps_its_hours_whole(tmp_path: Path) -> None:
    split = PrepareOptions().split.model_copy(update={"rule": "time", "test_fraction": 0.2})
    dataset = prepare(
        AVAZU,
        [REAL / "avazu_75k.csv.gz"],
        tmp_path / "out",
        options=PrepareOptions(split=split, fit_on="all"),
    )

    def hours(name: str) -> set[tuple[int, ...]]:
        frame = parts(dataset)[name]
        return set(frame.select("weekday", "hour_of_day").unique().rows())

    assert not hours("train") & (hours("valid") | hours("test"))
    assert not hours("valid") & hours("test")
    assert dataset.rows["test"] >= 0.2 * 75_502
