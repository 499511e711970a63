"""What a preparation is said to take, against what it takes."""

from __future__ import annotations

import gzip
import shutil
from collections import namedtuple
from pathlib import Path

import polars as pl
import pytest
import zstandard
from tests.pipeline.logs import CRITEO, SMALL, good_rows, write

from stampede import InputError
from stampede.pipeline import PrepareOptions, estimate, prepare
from stampede.pipeline.estimate import estimate as estimated
from stampede.pipeline.synth import synthesise

ROWS = 30_000


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("estimate") / "log.tsv"
    synthesise("criteo", file, rows=ROWS)
    return file


def test_an_estimate_is_near_what_it_comes_to(log: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimate, "SAMPLED_ROWS", 6_000)
        patch.setattr(estimate, "SAMPLED_BYTES", 1 << 20)
        found = estimated(CRITEO, [log], tmp_path / "deep" / "out")
    dataset = prepare(CRITEO, [log], tmp_path / "out")
    written = sum(file.stat().st_size for file in dataset.path.rglob("*.parquet"))
    assert found.rows == pytest.approx(ROWS, rel=0.01)
    assert found.input_bytes == log.stat().st_size
    assert found.dataset_bytes == pytest.approx(written, rel=0.25)
    assert sum(found.ids.values()) == pytest.approx(sum(dataset.sizes.values()), rel=0.3)
    assert found.ids.keys() == dataset.sizes.keys()
    assert found.fits
    assert found.memory_bytes <= found.memory_limit_bytes


def test_archives_and_parquet_are_estimated_by_what_they_hold(log: Path, tmp_path: Path) -> None:
    text = log.read_bytes()
    (tmp_path / "log.gz").write_bytes(gzip.compress(text, 1, mtime=0))
    (tmp_path / "log.zst").write_bytes(zstandard.ZstdCompressor(1).compress(text))
    pieces = [text[i : i + 200_000] for i in range(0, len(text), 200_000)]
    (tmp_path / "members.gz").write_bytes(b"".join(gzip.compress(p, 1, mtime=0) for p in pieces))
    frames = [zstandard.ZstdCompressor(1).compress(piece) for piece in pieces]
    (tmp_path / "frames.zst").write_bytes(b"".join(frames))
    for name in ("log.gz", "log.zst", "members.gz", "frames.zst"):
        assert estimated(CRITEO, [tmp_path / name], tmp_path / "out").rows == pytest.approx(ROWS, rel=0.02)
    frame = pl.DataFrame(
        {"y": [0, 1] * 50, "n": [1] * 100, "m": [2] * 100, "a": ["x"] * 100, "b": ["y"] * 100}
    )
    frame.write_parquet(tmp_path / "log.parquet")
    assert estimated(SMALL, [tmp_path / "log.parquet"] * 2, tmp_path / "out").rows == 200


def test_lines_are_measured_in_several_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "SAMPLED_BYTES", 1 << 14)
    monkeypatch.setattr(estimate, "SAMPLED_ROWS", 100)
    short, long = ["1\t1\t2\ta\tb"] * 20_000, ["1\t1\t2\ta\t" + 90 * "b"] * 20_000
    log = write(tmp_path / "log.txt", [*short[:2000], *long, *short])
    found = estimated(SMALL, [log], tmp_path / "out").rows
    assert 0.5 < found / 42_000 < 2  # by its first lines alone it would be five times as many


def test_nothing_is_written_and_faults_are_told(tmp_path: Path) -> None:
    log = write(tmp_path / "log.txt", [*good_rows(20), "bad row"])
    with pytest.raises(InputError, match=r"log.txt.*21"):
        estimated(SMALL, [log], tmp_path / "out")
    found = estimated(SMALL, [log], tmp_path / "out", options=PrepareOptions(bad_rows="skip", min_count=1))
    assert found.rows == 21
    assert [path.name for path in tmp_path.iterdir()] == ["log.txt"]


@pytest.mark.parametrize("text", ["", "\n\n", "y\tn\tm\ta\tb\n", "bad row\n"])
def test_a_log_without_a_row_is_told(text: str, tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text(text)
    with pytest.raises(InputError, match=r"log.txt.*there is no row in it"):
        estimated(SMALL, [tmp_path / "log.txt"], tmp_path / "out", options=PrepareOptions(bad_rows="skip"))


def test_a_disk_that_is_too_small_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage(10, 0, 10))
    log = write(tmp_path / "log.txt", good_rows(50))
    assert not estimated(SMALL, [log], tmp_path / "out").fits
