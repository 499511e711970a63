"""The schema of a log: good documents and bad ones, each with a message that names what to mend."""

from __future__ import annotations

from pathlib import Path

import pytest

from stampede import ConfigError, SchemaError
from stampede.pipeline import Schema
from stampede.pipeline.schema import PRESETS

GOOD = """
label = "click"
dense = ["age", "price"]
categorical = ["site", "ad"]
time = "at"
time_format = "iso"
time_features = ["hour_of_day"]
drop = ["id"]
columns = ["id", "at", "click", "age", "price", "site", "ad", "unused"]
separator = ";"
header = false
null_values = ["NA", "-"]
"""


def load(folder: Path, document: str) -> Schema:
    file = folder / "mine.toml"
    file.write_text(document)
    return Schema.load(file)


def test_a_document_may_use_every_word(tmp_path: Path) -> None:
    schema = load(tmp_path, GOOD)

    assert schema.name == "mine"
    assert schema.fields == ("site", "ad", "hour_of_day")
    assert schema.needed == ("age", "price", "site", "ad", "at")
    assert schema.columns[0] == "id"
    assert (schema.separator, schema.header, schema.null_values) == (";", False, ("NA", "-"))


def test_the_least_document_is_a_label_and_a_column(tmp_path: Path) -> None:
    schema = load(tmp_path, 'label = "y"\ncategorical = ["a"]')

    assert schema.columns == ("y", "a")
    assert schema.separator is None
    assert schema.header is None
    assert load(tmp_path, 'label = "y"\ntime = "t"').fields == ("hour_of_day", "weekday")
    assert load(tmp_path, 'label = "y"\ndense = ["x"]\nname = "other"').name == "other"


def test_the_presets_are_the_logs_in_circulation() -> None:
    criteo, avazu = (Schema.preset(name) for name in PRESETS)

    assert len(criteo.columns) == 40
    assert (len(criteo.dense), len(criteo.fields)) == (13, 26)
    assert len(avazu.columns) == 24
    assert (len(avazu.categorical), avazu.fields[-2:]) == (21, ("hour_of_day", "weekday"))
    assert "id" not in avazu.needed


def test_a_name_is_a_preset_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(GOOD)
    (tmp_path / "noending").write_text(GOOD)

    assert Schema.named("criteo") == Schema.preset("criteo")
    assert Schema.named(str(tmp_path / "mine.toml")).label == "click"
    assert Schema.named(str(tmp_path / "noending")).label == "click"
    with pytest.raises(
        ConfigError, match=r"'crite' is neither a preset \(criteo, avazu\) nor a TOML schema file"
    ):
        Schema.named("crite")
    with pytest.raises(SchemaError, match=r"none\.toml: cannot read the schema: No such file"):
        Schema.named("none.toml")
    with pytest.raises(SchemaError, match="unknown preset 'x': choose criteo or avazu"):
        Schema.preset("x")
    with pytest.raises(SchemaError, match="Is a directory"):
        Schema.load(tmp_path)


BAD = {
    "not TOML": ("label = ", "not a TOML file"),
    "no label": ('dense = ["x"]', "key label: it is required"),
    "an empty label": ('label = ""\ndense = ["x"]', "key label"),
    "an unknown key": ('label = "y"\ndense = ["x"]\ncategorial = ["a"]', "key categorial: "),
    "a label that is a list": ('label = ["y"]\ndense = ["x"]', "key label: "),
    "columns that are a string": ('label = "y"\ndense = "x"', "key dense: "),
    "a column that is a number": ('label = "y"\ndense = ["x", 3]', "key dense.1: "),
    "a header that is a word": ('label = "y"\ndense = ["x"]\nheader = "maybe"', "key header: "),
    "two roles": ('label = "y"\ndense = ["x"]\ncategorical = ["x"]', "column x has more than one role"),
    "a role twice": ('label = "y"\ndense = ["x", "x"]', "column x has more than one role"),
    "the label as a feature": ('label = "y"\ndense = ["y"]', "column y has more than one role"),
    "no feature": ('label = "y"\ndrop = ["x"]', "neither a dense nor a categorical column"),
    "a time without features": ('label = "y"\ntime = "t"\ntime_features = []', "neither a dense nor"),
    "an unknown time feature": (
        'label = "y"\ntime = "t"\ntime_features = ["month"]',
        "time_features has month",
    ),
    "a time feature twice": (
        'label = "y"\ntime = "t"\ntime_features = ["weekday", "weekday"]',
        "column name weekday, weekday_count is needed",
    ),
    "an unknown time format": ('label = "y"\ntime = "t"\ntime_format = "us"', "key time_format: "),
    "a long separator": ('label = "y"\ndense = ["x"]\nseparator = "::"', "key separator: "),
    "a quote as separator": ("label = 'y'\ndense = ['x']\nseparator = '\"'", "must not be a quote"),
    "a line end as separator": ('label = "y"\ndense = ["x"]\nseparator = "\\n"', "must not be a quote"),
    "a column that is added": (
        'label = "y"\ncategorical = ["a", "a_count"]',
        "a_count is needed for a column",
    ),
    "the column label": ('label = "y"\ncategorical = ["label"]', "column name label is needed"),
    "a column of another role that is added": (
        'label = "y"\ncategorical = ["a"]\ndense = ["a_count"]',
        "a_count",
    ),
    "a null flag that is added": ('label = "y"\ncategorical = ["x_null"]\ndense = ["x"]', "x_null"),
    "columns without a role's": ('label = "y"\ndense = ["x"]\ncolumns = ["y"]', "columns does not list x"),
    "columns with a name twice": (
        'label = "y"\ndense = ["x"]\ncolumns = ["y", "x", "x"]',
        "lists a name twice",
    ),
    "a path as a column": ('label = "y"\ncategorical = ["../x"]', "column name '../x'"),
    "a hidden column": ('label = "y"\ncategorical = [".x"]', "column name '.x'"),
    "a hidden label": ('label = ".y"\ncategorical = ["x"]', "column name '.y'"),
    "an empty column": ('label = "y"\ncategorical = [""]', "column name ''"),
    "a pattern": ('label = "y"\ncategorical = ["^x$"]', "would be read as a pattern"),
    "a star": ('label = "y"\ncategorical = ["*"]', "would be read as a pattern"),
}


@pytest.mark.parametrize("fault", BAD)
def test_a_bad_document_names_the_key_and_the_fault(fault: str, tmp_path: Path) -> None:
    document, reason = BAD[fault]

    with pytest.raises(SchemaError) as caught:
        load(tmp_path, document)

    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'mine.toml'}")
    assert reason in message
    assert "\n" not in message


def test_a_document_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_bytes(b'label = "\xff"')

    with pytest.raises(SchemaError, match=r"mine\.toml: not a TOML file"):
        Schema.load(tmp_path / "mine.toml")
