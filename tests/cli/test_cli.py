"""The command line: documents, exit codes, one-line errors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest

if TYPE_CHECKING:
    from tests.conftest import Command

COMMANDS = (
    "prepare", "inspect", "train", "evaluate", "predict", "report", "sweep", "compare", "importance",
    "export", "serve", "transform", "scale", "synth", "doctor",
)  # fmt: skip
TINY = ("--hidden", "16", "--epochs", "2", "--batch-size", "256")


@pytest.fixture(scope="module")
def run(small_run: Path) -> Path:
    return small_run


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example(stampede: Command, command: str) -> None:
    answer = stampede(command, "--help")

    assert answer.code == 0
    assert f"Example: stampede {command}" in answer.out


def test_help_imports_neither_torch_nor_polars() -> None:
    code = (
        "import sys; from stampede.cli import app\n"
        "heavy = {'torch', 'polars', 'numpy', 'pydantic'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )

    subprocess.run([sys.executable, "-c", code], check=True)


def test_version(stampede: Command) -> None:
    from stampede import __version__

    assert stampede("--version").out == f"stampede {__version__}\n"


def test_python_m_stampede_is_the_command() -> None:
    answer = subprocess.run([sys.executable, "-m", "stampede", "--version"], check=True, capture_output=True)

    assert answer.stdout.startswith(b"stampede ")


class TestTrainEvaluatePredict:
    def test_train_json(self, stampede: Command, small_dataset: Path, tmp_path: Path) -> None:
        answer = stampede("train", small_dataset, "--out", tmp_path / "run", *TINY, "--json")

        assert answer.code == 0
        assert set(answer.json) == {
            "valid", "test", "best_epoch", "steps", "skipped", "samples_per_second", "seconds",
        }  # fmt: skip
        assert set(answer.json["test"]) == {"auc", "logloss"}

    def test_train_says_so_where_the_dense_mode_is_not_the_recipes(
        self, stampede: Command, small_dataset: Path, tmp_path: Path
    ) -> None:
        answer = stampede("train", small_dataset, "--out", tmp_path / "run", *TINY)

        assert "--dense log" in answer.err
        assert "minmax" in answer.err

    def test_two_runs_with_one_seed_agree_and_evaluate_repeats_the_test_metrics(
        self, stampede: Command, small_dataset: Path, tmp_path: Path
    ) -> None:
        one, other = (
            stampede("train", small_dataset, "--out", tmp_path / name, *TINY, "--seed", "3", "--json").json
            for name in ("one", "other")
        )
        evaluated = stampede("evaluate", tmp_path / "one", "--split", "test", "--json").json

        assert one["valid"] == other["valid"]
        assert one["test"] == other["test"]
        assert {name: evaluated[name] for name in ("auc", "logloss")} == one["test"]

    def test_evaluate_json(self, stampede: Command, run: Path) -> None:
        document = stampede("evaluate", run, "--split", "valid", "--json").json

        assert {"auc", "logloss", "rows", "click_rate", "mean_score"} <= set(document)
        assert sum(entry["rows"] for entry in document["calibration"]) == document["rows"]

    def test_predict_scores_each_raw_row_in_order(
        self, stampede: Command, run: Path, small_log: Path, tmp_path: Path
    ) -> None:
        rows = small_log.read_text().splitlines()
        unlabelled = tmp_path / "unlabelled.tsv"
        unlabelled.write_text("\n".join(row.split("\t", 1)[1] for row in rows))

        labelled = stampede("predict", run, small_log, "--out", tmp_path / "a.parquet", "--json")
        stampede("predict", run, unlabelled, "--out", tmp_path / "b.csv")

        scores = pl.read_parquet(tmp_path / "a.parquet")["score"]
        assert labelled.json["rows"] == len(scores) == 1500
        assert scores.is_between(0, 1).all()
        assert pl.read_csv(tmp_path / "b.csv")["score"].to_list() == scores.to_list()

    def test_predict_agrees_with_evaluate(
        self, stampede: Command, run: Path, small_dataset: Path, small_log: Path, tmp_path: Path
    ) -> None:
        from stampede.pipeline.split import uniform_of_row
        from stampede.training.metrics import auc

        stampede("predict", run, small_log, "--out", tmp_path / "scores.parquet")
        rows = pl.DataFrame({"row": pl.Series(range(1500), dtype=pl.UInt64)})
        is_test = rows.select(uniform_of_row(pl.col("row"), seed=0) < 0.1).to_series()
        labels = pl.Series([int(line.split("\t", 1)[0]) for line in small_log.read_text().splitlines()])
        scores = pl.read_parquet(tmp_path / "scores.parquet")["score"]

        expected = stampede("evaluate", run, "--json").json["auc"]

        assert auc(labels.filter(is_test).to_numpy(), scores.filter(is_test).to_numpy()) == pytest.approx(
            expected, abs=1e-6
        )

    def test_predict_takes_unseen_and_empty_values(
        self, stampede: Command, run: Path, tmp_path: Path
    ) -> None:
        log = tmp_path / "new.tsv"
        log.write_text("\t".join(["?", *[""] * 13, *["never seen"] * 26]) + "\n" + "\t" * 39 + "\n")

        answer = stampede("predict", run, log, "--out", tmp_path / "scores.csv", "--json")

        assert answer.code == 0
        assert answer.json["rows"] == 2

    def test_a_bad_row_leaves_no_scores(self, stampede: Command, run: Path, tmp_path: Path) -> None:
        log = tmp_path / "new.tsv"
        log.write_text("0\tabc" + "\t" * 38 + "\n")

        answer = stampede("predict", run, log, "--out", tmp_path / "scores.csv")

        assert answer.code == 1
        assert f"{log}, line 1, column I1" in answer.err
        assert [path.name for path in tmp_path.iterdir()] == ["new.tsv"]

    def test_evaluate_refuses_another_dataset_in_the_old_place(
        self, stampede: Command, small_log: Path, tmp_path: Path
    ) -> None:
        data = tmp_path / "ds"
        stampede("prepare", "criteo", small_log, "--out", data)
        stampede("train", data, "--out", tmp_path / "run", *TINY)
        stampede("prepare", "criteo", small_log, "--out", data, "--seed", "1", "--force")

        refused = stampede("evaluate", tmp_path / "run")
        other = stampede("evaluate", tmp_path / "run", "--data", data)

        assert (refused.code, other.code) == (1, 1)
        assert "--data" in refused.err
        assert "another vocabulary" in other.err

    def test_a_run_needs_no_dataset_to_predict(
        self, stampede: Command, small_log: Path, tmp_path: Path
    ) -> None:
        data = tmp_path / "ds"
        stampede("prepare", "criteo", small_log, "--out", data)
        stampede("train", data, "--out", tmp_path / "run", *TINY)
        data.rename(tmp_path / "gone")

        answer = stampede("predict", tmp_path / "run", small_log, "--out", tmp_path / "s.csv")

        assert answer.code == 0

    def test_force_does_not_replace_a_folder_that_is_no_run(
        self, stampede: Command, small_dataset: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "home").mkdir()
        (tmp_path / "home" / "thesis.txt").write_text("years of work")

        answer = stampede("train", small_dataset, "--out", tmp_path / "home", *TINY, "--force")

        assert answer.code == 1
        assert (tmp_path / "home" / "thesis.txt").exists()

    @pytest.mark.parametrize(
        ("flags", "code"),
        [
            (("--optimizer", "cowclip", "--clip", "none"), 2),
            (("--hidden", "a,b"), 2),
            (("--batch-size", "0"), 2),
            (("--l2", "nan"), 2),
            (("--recipe", "nope"), 2),
            (("--device", "cuda"), 1),
        ],
    )
    def test_errors_of_train(
        self, stampede: Command, small_dataset: Path, tmp_path: Path, flags: tuple[str, ...], code: int
    ) -> None:
        answer = stampede("train", small_dataset, "--out", tmp_path / "run", *flags)

        assert answer.code == code
        assert answer.err.splitlines()[-1].startswith("stampede: ")
        assert not (tmp_path / "run").exists()

    def test_no_dataset_and_no_run(self, stampede: Command, tmp_path: Path) -> None:
        assert "stampede prepare" in stampede("train", tmp_path, "--out", tmp_path / "run").err
        assert "stampede train" in stampede("evaluate", tmp_path).err


class TestTransform:
    def test_rows_are_encoded_as_training_saw_them(
        self, stampede: Command, small_dataset: Path, small_log: Path, tmp_path: Path
    ) -> None:
        answer = stampede("transform", small_dataset, small_log, "--out", tmp_path / "e.parquet", "--json")

        encoded = pl.read_parquet(tmp_path / "e.parquet")
        test = pl.read_parquet(small_dataset / "test" / "part-00000.parquet")
        from stampede.pipeline.split import uniform_of_row

        row = pl.int_range(0, pl.len(), dtype=pl.UInt64)
        assert answer.json["rows"] == len(encoded) == 1500
        assert encoded.filter(uniform_of_row(row, seed=0) < 0.1).equals(test)

    def test_a_run_does_as_well_and_labels_may_be_missing(
        self, stampede: Command, run: Path, small_dataset: Path, small_log: Path, tmp_path: Path
    ) -> None:
        unlabelled = tmp_path / "unlabelled.tsv"
        unlabelled.write_text(
            "".join(line.split("\t", 1)[1] for line in small_log.read_text().splitlines(keepends=True))
        )

        stampede("transform", run, unlabelled, "--out", tmp_path / "run.parquet", "--no-counts")
        stampede("transform", small_dataset, small_log, "--out", tmp_path / "ds.parquet", "--no-counts")

        whole = pl.read_parquet(tmp_path / "ds.parquet")
        assert pl.read_parquet(tmp_path / "run.parquet").equals(whole.drop("label"))
        assert not [name for name in whole.columns if name.endswith("_count")]

    def test_usage(self, stampede: Command, small_dataset: Path, small_log: Path, tmp_path: Path) -> None:
        assert stampede("transform", small_dataset, small_log, "--out", tmp_path / "e.csv").code == 2
        assert stampede("transform", tmp_path, small_log, "--out", tmp_path / "e.parquet").code == 1


class TestScale:
    def test_paper_row(self, stampede: Command) -> None:
        document = stampede("scale", "--recipe", "criteo", "--batch-size", "131072", "--json").json

        assert document["learning_rate"] == pytest.approx(90.50e-4, rel=1e-3)
        assert document["l2"] == pytest.approx(128e-5)
        assert document["embedding_learning_rate"] == 1e-4
        assert set(document) == {
            "batch_size", "learning_rate", "embedding_learning_rate", "l2", "zeta", "warmup_epochs",
        }  # fmt: skip

    def test_says_when_an_exception_applies(self, stampede: Command) -> None:
        answer = stampede("scale", "--recipe", "avazu", "--batch-size", "131072", "--json")

        assert answer.json["l2"] == pytest.approx(96e-5)
        assert "exception" in answer.err


def test_synth_writes_rows_that_prepare_reads(stampede: Command, tmp_path: Path) -> None:
    log = tmp_path / "train.txt"

    made = stampede("synth", "criteo", "--rows", "500", "--out", log, "--json").json
    prepared = stampede("prepare", "criteo", log, "--out", tmp_path / "ds", "--json").json

    assert made["rows"] == sum(prepared["rows"].values()) == 500
    assert made["bytes"] == log.stat().st_size
    assert stampede("synth", "criteo", "--rows", "5", "--out", log).code == 1


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_job_cleanly(tmp_path: Path, small_log: Path, signum: signal.Signals) -> None:
    log = tmp_path / "log.tsv"
    log.write_text(small_log.read_text() * 600)
    command = [sys.executable, "-m", "stampede", "prepare", "criteo", str(log), "--out", str(tmp_path / "ds")]

    job = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while job.poll() is None and not list(tmp_path.glob(".ds.building-*")):
        time.sleep(0.02)
    os.kill(job.pid, signum)
    _, err = job.communicate(timeout=60)

    assert job.returncode == 130
    assert err.splitlines()[-1] == "stampede: interrupted"
    assert [path.name for path in tmp_path.iterdir()] == ["log.tsv"]
