"""What `stampede synth` promises: the real logs' shape, a signal to learn, the same bytes every time."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from stampede import ConfigError, StampedeError
from stampede.pipeline.synth import PresetName, synthesise, true_logits
from stampede.pipeline.synth.generate import BLOCK_ROWS
from stampede.pipeline.synth.profile import load_profile

BOTH = pytest.mark.parametrize("preset", ["criteo", "avazu"])
ROWS = 40_000


def written(
    preset: PresetName, folder: Path, *, rows: int = 2_000, seed: int = 0, block_rows: int = BLOCK_ROWS
) -> bytes:
    out = folder / "log.txt"
    synthesise(preset, out, rows=rows, seed=seed, block_rows=block_rows)
    return out.read_bytes()


def table(raw: bytes, separator: str) -> list[list[str]]:
    return [line.split(separator) for line in raw.decode("ascii").removesuffix("\n").split("\n")]


@pytest.fixture(scope="module")
def criteo(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    return table(written("criteo", tmp_path_factory.mktemp("criteo"), rows=ROWS), "\t")


@pytest.fixture(scope="module")
def avazu(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    return table(written("avazu", tmp_path_factory.mktemp("avazu"), rows=ROWS), ",")


@BOTH
def test_the_same_options_give_the_same_bytes_however_rows_are_blocked(
    preset: PresetName, tmp_path: Path
) -> None:
    first = written(preset, tmp_path)
    assert written(preset, tmp_path) == first
    assert written(preset, tmp_path, block_rows=177) == first
    assert written(preset, tmp_path, block_rows=5_000) == first


@BOTH
def test_the_bytes_do_not_depend_on_the_number_of_threads(
    preset: PresetName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    alone = written(preset, tmp_path, block_rows=300)
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert written(preset, tmp_path, block_rows=300) == alone


@BOTH
def test_seeds_draw_other_rows_of_the_same_world(preset: PresetName, tmp_path: Path) -> None:
    separator = "\t" if preset == "criteo" else ","
    one, two = (table(written(preset, tmp_path, seed=seed), separator) for seed in (1, 2))
    assert one != two
    column = -1 if preset == "avazu" else 22  # C21 of Avazu, C9 of Criteo
    top_one, top_two = (Counter(row[column] for row in rows).most_common(1)[0][0] for rows in (one, two))
    assert top_one == top_two


def test_a_shorter_criteo_file_is_the_head_of_a_longer_one(tmp_path: Path) -> None:
    assert written("criteo", tmp_path, rows=700).startswith(written("criteo", tmp_path, rows=500))


def test_criteo_has_a_label_13_integers_and_26_hex_ids(criteo: list[list[str]]) -> None:
    assert len(criteo) == ROWS
    for row in criteo:
        assert len(row) == 40
        assert row[0] in ("0", "1")
        assert all(re.fullmatch(r"-?(0|[1-9]\d*)|", cell) for cell in row[1:14])
        assert all(re.fullmatch(r"[0-9a-f]{8}|", cell) for cell in row[14:])


def test_criteo_fields_are_empty_as_often_as_the_real_ones(criteo: list[list[str]]) -> None:
    for column, field in enumerate(load_profile("criteo").fields, start=1):
        share = sum(row[column] == "" for row in criteo) / ROWS
        assert share == pytest.approx(field.null, abs=0.01), field.name
    for one, other in ((7, 9), (7, 11), (1, 10), (4, 13), (16, 17), (16, 37), (32, 33), (32, 39)):
        assert all((row[one] == "") == (row[other] == "") for row in criteo)


def test_only_i2_is_negative_and_it_is_never_empty(criteo: list[list[str]]) -> None:
    i2 = Counter(row[2] for row in criteo)
    assert i2["-1"] / ROWS == pytest.approx(0.102, abs=0.006)
    assert 0 < i2["-2"] < i2["-1"]
    assert "" not in i2
    assert not any(cell.startswith("-") for row in criteo for cell in (row[1], *row[3:14]))


def test_some_ids_look_like_numbers(criteo: list[list[str]]) -> None:
    ids = {cell for row in criteo for cell in row[14:] if cell}
    assert any(cell.isdigit() and cell.startswith("0") for cell in ids)
    assert any(re.fullmatch(r"\d+e\d+", cell) for cell in ids)


@BOTH
def test_the_click_rate_is_the_real_one(preset: PresetName, request: pytest.FixtureRequest) -> None:
    rows: list[list[str]] = request.getfixturevalue(preset)
    labels = [row[0] if preset == "criteo" else row[1] for row in rows[preset == "avazu" :]]
    assert labels.count("1") / ROWS == pytest.approx(load_profile(preset).click_rate, abs=0.008)


def test_the_long_tail_is_the_real_one(criteo: list[list[str]]) -> None:
    # Of 40,000 random rows of criteo_137k.tsv.gz: distinct values, values seen once, share of the top value.
    for column, distinct, once, top in (
        (14, 340, 162, 0.499),
        (16, 20_579, 18_393, 0.026),
        (20, 6_110, 2_169, 0.021),
        (37, 6_797, 4_367, 0.052),
    ):
        counts = Counter(row[column] for row in criteo)
        del counts[""]
        name = load_profile("criteo").fields[column - 1].name
        assert len(counts) == pytest.approx(distinct, rel=0.12), name
        assert sum(n == 1 for n in counts.values()) == pytest.approx(once, rel=0.25), name
        assert max(counts.values()) / counts.total() == pytest.approx(top, rel=0.1), name


def test_avazu_has_kaggles_header_and_unique_uint64_ids(avazu: list[list[str]]) -> None:
    assert ",".join(avazu[0]) == (
        "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,app_category,device_id,"
        "device_ip,device_model,device_type,device_conn_type,C14,C15,C16,C17,C18,C19,C20,C21"
    )
    ids = [row[0] for row in avazu[1:]]
    assert len(set(ids)) == ROWS
    assert all(str(int(cell)) == cell and int(cell) < 2**64 for cell in ids)
    assert sum(int(cell) >= 2**63 for cell in ids) / ROWS == pytest.approx(0.5, abs=0.02)


def test_avazu_hours_never_go_back_and_span_ten_days(avazu: list[list[str]]) -> None:
    hours = [row[2] for row in avazu[1:]]
    assert hours == sorted(hours)
    assert (hours[0], hours[-1], len(set(hours))) == ("14102100", "14103023", 240)


def test_avazu_fields_are_never_empty_and_c20_is_minus_one_in_half_the_rows(avazu: list[list[str]]) -> None:
    assert all(len(row) == 24 and "" not in row for row in avazu)
    assert sum(row[22] == "-1" for row in avazu[1:]) / ROWS == pytest.approx(0.558, abs=0.01)


@BOTH
def test_knowing_the_truth_beats_a_first_order_model_and_both_beat_chance(
    preset: PresetName, request: pytest.FixtureRequest
) -> None:
    rows: list[list[str]] = request.getfixturevalue(preset)
    features, labels = (rows, 0) if preset == "criteo" else (rows[1:], 1)
    first = labels + 1 + (preset == "avazu")
    cells = np.array([row[first:] for row in features])
    clicks = np.array([row[labels] == "1" for row in features])
    train = ROWS * 3 // 4
    model = make_pipeline(
        OneHotEncoder(min_frequency=5, handle_unknown="infrequent_if_exist"),
        LogisticRegression(C=0.03, max_iter=40, tol=1e-2),
    ).fit(cells[:train], clicks[:train])
    first_order = roc_auc_score(clicks[train:], model.decision_function(cells[train:]))
    bayes = roc_auc_score(clicks[train:], true_logits(preset, rows=ROWS)[train:])
    assert 0.66 < first_order < bayes - 0.03
    assert bayes == pytest.approx(0.80 if preset == "criteo" else 0.78, abs=0.02)


@BOTH
def test_gzip_holds_the_plain_file_and_is_the_same_every_time(preset: PresetName, tmp_path: Path) -> None:
    packed = [tmp_path / "a.tsv.gz", tmp_path / "b.gz"]
    results = [synthesise(preset, path, rows=1_000) for path in packed]
    assert gzip.decompress(packed[0].read_bytes()) == written(preset, tmp_path, rows=1_000)
    assert packed[0].read_bytes() == packed[1].read_bytes()
    assert results[0].bytes == packed[0].stat().st_size


def test_progress_adds_up_to_the_rows(tmp_path: Path) -> None:
    seen: list[int] = []
    out = tmp_path / "log.tsv"
    result = synthesise("criteo", out, rows=1_050, block_rows=500, progress=seen.append)
    assert seen == [500, 500, 50]
    assert (result.rows, result.bytes) == (1_050, out.stat().st_size)
    assert result.seconds > 0


def test_one_row_is_a_file_too(tmp_path: Path) -> None:
    assert written("criteo", tmp_path, rows=1).count(b"\n") == 1
    assert written("avazu", tmp_path, rows=1).count(b"\n") == 2


@pytest.mark.parametrize("rows", [0, -3])
def test_less_than_one_row_is_refused(rows: int, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"--rows {rows}: at least 1 row"):
        synthesise("criteo", tmp_path / "log.txt", rows=rows)


def test_a_place_that_cannot_be_written_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the folder .*absent does not exist"):
        synthesise("criteo", tmp_path / "absent" / "log.txt", rows=1)
    with pytest.raises(ConfigError, match=r"must end in one of"):
        synthesise("criteo", tmp_path / "log.parquet", rows=1)
    folder = tmp_path / "folder.txt"
    folder.mkdir()
    with pytest.raises(ConfigError, match="is a folder"):
        synthesise("criteo", folder, rows=1)


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(StampedeError, match=r"cannot write .*log\.txt: No space left on device$"):
        synthesise("criteo", tmp_path / "log.txt", rows=100)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_disk_full_while_writing_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_open = Path.open

    def open_full(self: Path, mode: str = "r") -> object:
        return real_open(Path("/dev/full") if self.suffix == ".tmp" else self, mode)

    monkeypatch.setattr(Path, "open", open_full)
    with pytest.raises(StampedeError, match="No space left on device"):
        synthesise("avazu", tmp_path / "log.csv.gz", rows=3_000)


def test_an_interrupted_job_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "log.txt"
    out.write_text("old")

    def stop(rows: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        synthesise("criteo", out, rows=1_000, block_rows=100, progress=stop)
    assert out.read_text() == "old"
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_write_permission_is_one_line(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StampedeError, match=r"cannot write .*: Permission denied"):
            synthesise("criteo", tmp_path / "log.txt", rows=1)
    finally:
        tmp_path.chmod(0o700)
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize(
    ("preset", "digest"),
    [
        ("criteo", "621687d1714e5cda5aec5525fa232426aba335c9f3bec60cb674120ba7bb7379"),
        ("avazu", "a671c07f774c67b9a61afd72d81318ad93998633bd3b7a82ab0df03881757183"),
    ],
)
def test_a_world_without_days_stays_what_it_was(preset: PresetName, digest: str, tmp_path: Path) -> None:
    # of the files that were written before there were days
    assert hashlib.sha256(written(preset, tmp_path, rows=3_000, seed=5)).hexdigest() == digest


def test_an_unknown_preset_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="criteo, avazu"):
        synthesise("kaggle", tmp_path / "log.txt", rows=1)  # type: ignore[arg-type]
