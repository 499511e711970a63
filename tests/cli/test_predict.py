"""``stampede predict``: every way in and out, and what it leaves behind when it cannot go on."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest
import torch

if TYPE_CHECKING:
    from tests.conftest import Command

PREDICT = (sys.executable, "-m", "stampede", "predict")


@pytest.fixture(scope="module")
def run(small_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from stampede.workflows.train import run_train

    out = tmp_path_factory.mktemp("run") / "deepfm"
    given = {"hidden": (16,), "epochs": 1, "batch_size": 256, "device": "cpu", "threads": 1}
    run_train(small_dataset, out=out, recipe=None, given=given, force=False, say=lambda _line: None)
    return out


@pytest.fixture(scope="module")
def log(small_log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """22,500 rows: more than one batch, and no whole number of them."""
    file = tmp_path_factory.mktemp("log") / "new.tsv"
    file.write_bytes(small_log.read_bytes() * 15)
    return file


@pytest.fixture(scope="module")
def expected(run: Path, log: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The scores by way of encoded rows in a file, a batch of the evaluation at a time."""
    from stampede.pipeline.transform import transform
    from stampede.training.batch import batch_of
    from stampede.training.evaluation import EVALUATION_BATCH, logits_of
    from stampede.training.metrics import probabilities_of
    from stampede.workflows.run import Run

    opened = Run.open(run)
    model = opened.load_model(torch.device("cpu"))
    file = transform(opened.encoder, [log], tmp_path_factory.mktemp("encoded")).file
    fields, dense = list(opened.encoder.vocabularies), opened.encoder.dense_columns
    rows = batch_of(pl.read_parquet(file), dense_columns=dense, fields=fields)
    torch.set_num_threads(1)
    logits = [found for found, _ in logits_of(model, rows.split(EVALUATION_BATCH))]
    return [float(p) for part in logits for p in probabilities_of(part.numpy())]


def test_scores_are_those_of_encoded_rows_to_the_last_bit(
    stampede: Command, run: Path, log: Path, expected: list[float], tmp_path: Path
) -> None:
    answer = stampede("predict", run, log, "--out", tmp_path / "scores.parquet", "--json")

    assert answer.json["rows"] == 22_500
    assert set(answer.json) == {"rows", "seconds"}
    scores = pl.read_parquet(tmp_path / "scores.parquet")
    assert scores.schema == {"score": pl.Float64}
    assert scores["score"].to_list() == expected


def test_batches_do_not_depend_on_files_and_blocks(
    stampede: Command,
    run: Path,
    log: Path,
    small_log: Path,
    expected: list[float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from stampede.pipeline import parquet_rows
    from stampede.pipeline.schema import Schema
    from stampede.workflows import score_files

    monkeypatch.setattr(score_files, "ROWS_PER_PIECE", 10_000)
    monkeypatch.setattr(parquet_rows, "ROWS_PER_BLOCK", 999)
    columns = list(Schema.preset("criteo").columns)
    frame = pl.read_csv(
        small_log, separator="\t", has_header=False, new_columns=columns, infer_schema=False, quote_char=None
    )
    frame.write_parquet(tmp_path / "b.parquet")
    files = [small_log, tmp_path / "b.parquet", small_log, *[tmp_path / "b.parquet"] * 12]

    stampede("predict", run, *files, "--out", tmp_path / "scores.parquet")

    assert pl.read_parquet(tmp_path / "scores.parquet")["score"].to_list() == expected


def test_standard_input_to_standard_output(run: Path, log: Path, expected: list[float]) -> None:
    command = [*PREDICT, str(run), "-", "--out", "-"]
    with log.open("rb") as rows:
        done = subprocess.run(command, stdin=rows, capture_output=True, check=True)

    header, *scores = done.stdout.decode().splitlines()
    assert header == "score"
    assert [float(score) for score in scores] == expected
    assert b"22,500 rows" in done.stderr


def test_a_reader_that_has_enough_ends_the_job_in_silence(run: Path, log: Path) -> None:
    predict = " ".join(map(str, (*PREDICT, run, "-", "--out", "-")))
    line = f"yes {log} | xargs cat | {predict} | head -n 3; exit ${{PIPESTATUS[2]}}"

    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=120, check=False)

    assert done.stdout.splitlines()[0] == "score"
    assert len(done.stdout.splitlines()) == 3
    assert "Traceback" not in done.stderr
    assert "Error" not in done.stderr
    assert done.returncode == 0


@pytest.mark.parametrize("out", ["scores.csv", "scores.parquet", "-"])
def test_no_rows_give_no_scores(
    stampede: Command, run: Path, out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("new.tsv").write_text("\n")

    answer = stampede("predict", run, "new.tsv", "--out", out)

    assert answer.code == 0
    if out.endswith("parquet"):
        assert pl.read_parquet(out).schema == {"score": pl.Float64}
    else:
        assert (answer.out if out == "-" else Path(out).read_text()) == "score\n"


def test_a_bad_row_leaves_what_was_printed_and_no_file(
    stampede: Command, run: Path, log: Path, expected: list[float], tmp_path: Path
) -> None:
    bad = tmp_path / "bad.tsv"
    bad.write_bytes(log.read_bytes() * 2 + b"0\tabc" + b"\t" * 38 + b"\n")

    printed = stampede("predict", run, bad, "--out", "-")
    written = stampede("predict", run, bad, "--out", tmp_path / "scores.csv")

    assert (printed.code, written.code) == (1, 1)
    for answer in (printed, written):
        assert f"{bad}, line 45001, column I1" in answer.err
    scores = [float(score) for score in printed.out.splitlines()[1:]]
    assert len(scores) % 16_384 == 0
    assert scores[:16_384] == expected[:16_384]
    assert [path.name for path in tmp_path.iterdir()] == ["bad.tsv"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("log", "--out", "-", "--json"), "both print on stdout"),
        (("-", "-", "--out", "s.csv"), "name it once"),
        (("log", "--out", "s.txt"), "must end in .csv or .parquet, or be -"),
    ],
)
def test_usage(stampede: Command, run: Path, arguments: tuple[str, ...], message: str) -> None:
    answer = stampede("predict", run, *arguments)

    assert answer.code == 2
    assert message in answer.err
    assert answer.out == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"PAR1...", "parquet cannot be read from a pipe"),
        (b"1\t2\n", "line 1: the row has 2 fields"),
        (b"\x1f\x8b\x08 cut", "damaged or truncated archive"),
        (b"BZh91AY", "a bzip2 archive"),
    ],
)
def test_what_cannot_be_read_of_standard_input_is_told(
    stampede: Command, run: Path, text: bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    os.write(writer, text)
    os.close(writer)
    monkeypatch.setattr("stampede.pipeline.text_blocks.STDIN_DESCRIPTOR", reader)

    answer = stampede("predict", run, "-", "--out", tmp_path / "scores.csv")
    os.close(reader)

    assert answer.code == 1
    assert answer.err.splitlines()[-1].startswith("stampede: standard input")
    assert message in answer.err
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_grow_is_told_in_one_line(run: Path, log: Path, tmp_path: Path) -> None:
    # a limit on the size of files stands in for it: Python gets EFBIG where a disk gives ENOSPC
    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    done = subprocess.run(
        [*PREDICT, run, log, "--out", tmp_path / "scores.csv"],
        capture_output=True,
        preexec_fn=limit,
        check=False,
    )

    assert done.returncode == 1
    assert b"Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(b"stampede: ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_standard_output_that_cannot_be_written_is_told(run: Path, log: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*PREDICT, run, log, "--out", "-"], stdout=full, stderr=subprocess.PIPE, check=False
        )

    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last == b"stampede: cannot write to standard output: No space left on device"


def test_an_interrupt_leaves_nothing_behind(run: Path, log: Path, tmp_path: Path) -> None:
    job = subprocess.Popen(
        [*PREDICT, run, log, "-", "--out", tmp_path / "scores.csv"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    while job.poll() is None and not list(tmp_path.glob(".scores.csv.*/scores.csv")):
        time.sleep(0.02)
    time.sleep(0.3)  # it waits for more rows now
    os.kill(job.pid, signal.SIGINT)
    code = job.wait(timeout=60)
    assert job.stderr is not None
    assert job.stdin is not None
    err = job.stderr.read()
    job.stdin.close()
    job.stderr.close()

    assert code == 130
    assert err.splitlines()[-1] == b"stampede: interrupted"
    assert list(tmp_path.iterdir()) == []


def test_scores_do_not_depend_on_where_rows_lie_in_memory(run: Path) -> None:
    from stampede.workflows.predict import score
    from stampede.workflows.run import Run

    opened = Run.open(run)
    model = opened.load_model(torch.device("cpu"))
    n_dense = len(opened.encoder.dense_columns)
    drawn = np.random.default_rng(0)
    memory = torch.empty(1000 * n_dense + 16)
    values = torch.from_numpy(drawn.random((1000, n_dense), np.float32))
    ids = torch.ones(1000, len(opened.encoder.vocabularies), dtype=torch.int32)
    found = []
    for shift in range(16):
        dense = memory[shift : shift + values.numel()].view(values.shape)
        found.append(score(model, dense.copy_(values), ids, device=torch.device("cpu")).tobytes())

    assert len(set(found)) == 1
