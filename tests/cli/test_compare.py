"""``stampede compare`` and ``stampede importance``, on two small runs."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stampede.pipeline import PrepareOptions, Schema, SplitRule, prepare
from stampede.pipeline.dataset import Dataset
from stampede.training.metrics import auc, log_loss, probabilities_of
from stampede.workflows.importance import run_importance
from stampede.workflows.run import Run
from stampede.workflows.train import run_train

if TYPE_CHECKING:
    from tests.conftest import Command


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory, criteo_rows: Path) -> Path:
    """9,000 real rows, a third of them to test on."""
    out = tmp_path_factory.mktemp("dataset") / "criteo"
    prepare(
        Schema.preset("criteo"),
        [criteo_rows],
        out,
        options=PrepareOptions(split=SplitRule(valid_fraction=0.0, test_fraction=0.3), min_count=4),
    )
    return out


def train(dataset: Path, out: Path, **given: object) -> Path:
    values = {
        "hidden": (16,),
        "epochs": 2,
        "batch_size": 128,
        "device": "cpu",
        "embedding_learning_rate": 2e-3,
    }
    run_train(dataset, out=out, recipe="criteo", given=values | given, force=False, say=lambda _line: None)
    return out


@pytest.fixture(scope="module")
def runs(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A good run, a hardly trained one, and one of another seed."""
    folder = tmp_path_factory.mktemp("runs")
    return {
        "good": train(dataset, folder / "good"),
        "poor": train(dataset, folder / "poor", max_steps=2),
        "other": train(dataset, folder / "other", seed=1),
    }


class TestCompare:
    def test_a_bad_run_is_worse_by_more_than_noise(self, stampede: Command, runs: dict[str, Path]) -> None:
        answer = stampede(
            "compare", runs["good"], runs["poor"], runs["other"], "--bootstrap", "300", "--json"
        )

        document = answer.json
        poor, other = document["differences"]
        assert answer.code == 0
        assert document["baseline"] == str(runs["good"])
        assert poor["auc"]["difference"] < -0.05
        assert poor["auc"]["high"] < 0
        assert (poor["auc"]["verdict"], poor["logloss"]["verdict"]) == ("more than noise", "more than noise")
        assert poor["auc"]["delong"]["difference"] == pytest.approx(poor["auc"]["difference"], abs=1e-12)
        assert poor["auc"]["delong"]["p"] < 1e-6
        assert other["auc"]["low"] < other["auc"]["difference"] < other["auc"]["high"]

    def test_metrics_are_those_of_evaluate(self, stampede: Command, runs: dict[str, Path]) -> None:
        compared = stampede("compare", runs["good"], runs["poor"], "--bootstrap", "100", "--json").json
        evaluated = stampede("evaluate", runs["poor"], "--json").json

        poor = compared["runs"][1]
        assert poor["auc"]["value"] == evaluated["auc"]
        assert poor["logloss"]["value"] == pytest.approx(evaluated["logloss"], rel=1e-12)
        assert compared["rows"] == evaluated["rows"]
        assert poor["auc"]["low"] < poor["auc"]["value"] < poor["auc"]["high"]

    def test_the_text_says_it_plainly_and_again_with_the_same_seed(
        self, stampede: Command, runs: dict[str, Path]
    ) -> None:
        asked = ("compare", runs["good"], runs["poor"], "--baseline", runs["poor"], "--bootstrap", "100")

        one, again, other = stampede(*asked), stampede(*asked), stampede(*asked, "--seed", "1")

        assert "more than noise" in one.out
        assert "against poor" in one.out
        assert "DeLong" in one.out
        assert one.out == again.out != other.out

    def test_copies_of_a_run_differ_within_noise(
        self, stampede: Command, runs: dict[str, Path], tmp_path: Path
    ) -> None:
        shutil.copytree(runs["good"], tmp_path / "copy", symlinks=True)

        answer = stampede("compare", runs["good"], tmp_path / "copy", "--bootstrap", "100", "--json")

        (copy,) = answer.json["differences"]
        assert (copy["auc"]["difference"], copy["auc"]["p"], copy["auc"]["verdict"]) == (0, 1, "within noise")

    def test_another_dataset_takes_data(
        self, stampede: Command, runs: dict[str, Path], dataset: Path, small_dataset: Path, tmp_path: Path
    ) -> None:
        moved = tmp_path / "moved"
        shutil.copytree(dataset, moved)
        stranger = train(small_dataset, tmp_path / "stranger", max_steps=1)

        refused = stampede("compare", runs["good"], stranger)
        misfit = stampede("compare", runs["good"], stranger, "--data", moved)
        fine = stampede("compare", runs["good"], runs["poor"], "--data", moved, "--bootstrap", "100")

        assert (refused.code, misfit.code, fine.code) == (1, 1, 0)
        assert "--data" in refused.err
        assert "vocabulary" in misfit.err

    def test_usage(self, stampede: Command, runs: dict[str, Path]) -> None:
        good, poor, other = runs.values()

        assert stampede("compare", good).code == 2
        assert stampede("compare", good, good).code == 2
        assert stampede("compare", good, poor, "--baseline", other).code == 2
        assert stampede("compare", good, poor, "--split", "valid").code == 1


class TestImportance:
    def test_columns_by_what_their_shuffling_costs(
        self, stampede: Command, runs: dict[str, Path], tmp_path: Path
    ) -> None:
        out = tmp_path / "importance.csv"

        answer = stampede("importance", runs["good"], "--repeats", "2", "--out", out, "--json")

        columns = answer.json["columns"]
        drops = [one["auc_drop"]["mean"] for one in columns]
        assert answer.code == 0
        assert answer.json["auc"] == stampede("evaluate", runs["good"], "--json").json["auc"]
        assert {one["column"] for one in columns} == {f"I{i}" for i in range(1, 14)} | {
            f"C{i}" for i in range(1, 27)
        }
        assert {one["kind"] for one in columns if one["column"].startswith("I")} == {"dense"}
        assert drops == sorted(drops, reverse=True)
        assert drops[0] > 0.005
        with out.open() as file:
            written = list(csv.DictReader(file))
        assert [row["column"] for row in written] == [one["column"] for one in columns]
        assert float(written[0]["auc_drop"]) == drops[0]

    def test_is_what_a_shuffled_file_would_score(self, runs: dict[str, Path], dataset: Path) -> None:
        import numpy as np
        import torch

        from stampede.training.batch import batch_of

        result = run_importance(runs["good"], repeats=1, seed=7)

        opened = Dataset.open(dataset)
        frame = opened.read("test", ["label", *opened.dense_columns, *opened.fields])
        place = len(opened.dense_columns) + opened.fields.index("C6")
        order = np.random.default_rng((7, place, 0)).permutation(len(frame))
        shuffled = frame.with_columns(frame["C6"][order])
        rows = batch_of(shuffled, dense_columns=opened.dense_columns, fields=opened.fields)
        with torch.no_grad():
            logits = Run.open(runs["good"]).load_model(torch.device("cpu"))(rows.dense, rows.ids).numpy()
        labels = frame["label"].to_numpy()
        (found,) = [one for one in result.columns if one.column == "C6"]
        assert found.auc_drop is not None
        assert result.auc is not None
        assert result.auc - found.auc_drop.mean == pytest.approx(auc(labels, logits), abs=1e-9)
        assert result.logloss + found.logloss_rise.mean == pytest.approx(
            log_loss(labels, probabilities_of(logits)), abs=1e-7
        )

    def test_a_seed_gives_its_shuffles_again(self, runs: dict[str, Path]) -> None:
        one, again, other = (run_importance(runs["poor"], repeats=1, seed=seed) for seed in (3, 3, 4))

        assert one == again
        assert one.columns != other.columns

    def test_derived_columns_are_named(self, stampede: Command, small_log: Path, tmp_path: Path) -> None:
        stampede(
            "prepare", "criteo", small_log, "--out", tmp_path / "ds", "--cross", "C1,C2", "--dense-null-flag",
            "--valid-fraction", "0", "--test-fraction", "0.5",
        )  # fmt: skip
        run = train(tmp_path / "ds", tmp_path / "run", max_steps=1)

        answer = stampede("importance", run, "--repeats", "1", "--json")

        line = next(line for line in answer.err.splitlines() if "made of other columns" in line)
        assert "I1_null" in line
        assert "C1_x_C2" in line
        assert "C3" not in line
        assert json.loads(answer.out)["rows"] == sum(
            split.rows
            for name, split in Dataset.open(tmp_path / "ds").manifest.splits.items()
            if name == "test"
        )

    def test_a_split_beyond_memory_is_refused(
        self, stampede: Command, runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("stampede.training.loader.available_memory", lambda: 1000)

        answer = stampede("importance", runs["good"])

        assert answer.code == 1
        assert "does not fit the memory" in answer.err
