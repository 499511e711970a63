"""A run that is stopped anywhere and resumed ends as the one that was not, bit for bit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from stampede import CheckpointError, StampedeError, StoppedError
from stampede.pipeline.dataset import Dataset
from stampede.training.checkpoint import FORMAT_VERSION, checkpoints_of, load_best, read_state
from stampede.training.config import TrainConfig
from stampede.training.nonfinite import NotFiniteError
from stampede.training.state import latest_checkpoint
from stampede.training.trainer import Trainer, TrainResult

CPU = torch.device("cpu")
BATCHES = 9  # of 1,200 rows by 140


def config(**values: Any) -> TrainConfig:
    return TrainConfig(
        **{"hidden": (8,), "epochs": 3, "batch_size": 140, "l2": 1e-3, "loader": "device", **values}
    )


@pytest.fixture(scope="module")
def dataset(small_dataset: Path) -> Dataset:
    return Dataset.open(small_dataset)


class StopAt:
    """Says to stop at the n-th time that it is asked."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self) -> bool:
        self.left -= 1
        return self.left <= 0


def silent(_line: str) -> None:
    pass


def trainer(dataset: Dataset, run: Path, settings: TrainConfig, **options: Any) -> Trainer:
    run.mkdir(exist_ok=True)
    return Trainer(settings, dataset, device=CPU, run=run, **options)


def fit_in_pieces(dataset: Dataset, run: Path, settings: TrainConfig, stops: list[int]) -> TrainResult:
    """Train, stopping at the given numbers of questions whether to, each time in a new trainer."""
    for number in stops:
        start = latest_checkpoint(run, silent) if run.exists() else None
        try:
            return trainer(dataset, run, settings, start=start, stop=StopAt(number)).fit()
        except StoppedError:
            continue
    return trainer(dataset, run, settings, start=latest_checkpoint(run, silent)).fit()


def contents(run: Path) -> dict[str, Any]:
    """All that a run computed: its records, and the bits of its checkpoints."""
    folders = {"best": run / "best", "last": checkpoints_of(run)[0]}
    tensors = {
        f"{role}/{file.name}/{name}": tensor
        for role, folder in folders.items()
        for file in folder.glob("*.safetensors")
        for name, tensor in load_file(file).items()
    }
    return {
        "metrics": (run / "metrics.jsonl").read_text(),
        "best": (run / "best").resolve().name,
        "tensors": {name: tensor.numpy().tobytes() for name, tensor in tensors.items()},
    }


@pytest.fixture(scope="module")
def unbroken(
    dataset: Dataset, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[TrainConfig], tuple[dict[str, Any], TrainResult]]:
    """The contents of a run that is not stopped, made once for each config."""
    known: dict[str, tuple[dict[str, Any], TrainResult]] = {}

    def run(settings: TrainConfig) -> tuple[dict[str, Any], TrainResult]:
        key = settings.model_dump_json()
        if key not in known:
            folder = tmp_path_factory.mktemp("unbroken")
            result = trainer(dataset, folder, settings).fit()
            known[key] = contents(folder), result
        return known[key]

    return run


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "checkpoints between": {"checkpoint_every": "4"},
    "running mean": {"ema_decay": 0.9},
    "no clip": {"optimizer": "adam", "clip": "none"},
    "helen": {"optimizer": "helen", "clip": "none"},
    "sgd": {"optimizer": "sgd", "clip": "none"},
    "adagrad": {"optimizer": "adagrad", "clip": "none"},
    "touched": {"update": "touched"},
    "patience": {"epochs": 8, "patience": 1, "learning_rate": 0.02, "embedding_learning_rate": 0.02},
    "in the middle": {"max_steps": 2 * BATCHES + 4},
    "stream": {"loader": "stream"},
    "dcn-v2": {"model": "dcn-v2"},
}


@pytest.mark.parametrize("variant", VARIANTS)
@settings(
    max_examples=4,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(stops=st.lists(st.integers(1, 2 * BATCHES), min_size=1, max_size=4))
def test_a_run_in_pieces_equals_the_unbroken_one(
    dataset: Dataset,
    tmp_path: Path,
    unbroken: Callable[[TrainConfig], tuple[dict[str, Any], TrainResult]],
    variant: str,
    stops: list[int],
) -> None:
    settings = config(**VARIANTS[variant])
    run = tmp_path / "run"
    shutil.rmtree(run, ignore_errors=True)
    expected, result = unbroken(settings)

    resumed = fit_in_pieces(dataset, run, settings, stops)

    assert contents(run) == expected
    assert (resumed.valid, resumed.test, resumed.best_epoch) == (result.valid, result.test, result.best_epoch)
    assert (resumed.steps, resumed.epochs) == (result.steps, result.epochs)


class TestDamage:
    @pytest.fixture
    def run(self, dataset: Dataset, tmp_path: Path) -> Path:
        run = tmp_path / "run"
        with pytest.raises(StoppedError, match="stopped at step 13 of epoch 2"):
            trainer(dataset, run, config(checkpoint_every="4"), stop=StopAt(14)).fit()
        return run

    def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
        self,
        run: Path,
        dataset: Dataset,
        unbroken: Callable[[TrainConfig], tuple[dict[str, Any], TrainResult]],
    ) -> None:
        latest, before, *_ = checkpoints_of(run)
        file = latest / "optimizer.safetensors"
        content = bytearray(file.read_bytes())
        content[-5] ^= 1
        file.write_bytes(content)
        lines: list[str] = []

        start = latest_checkpoint(run, lines.append)

        assert start is not None
        assert (start.folder, start.state.step) == (before, 9)
        assert lines == [f"{file} is damaged: its checksum is another; trying the checkpoint before it"]
        settings = config(checkpoint_every="4")
        trainer(dataset, run, settings, start=start).fit()
        assert contents(run) == unbroken(settings)[0]

    @pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
    def test_every_file_is_checked(self, run: Path, name: str) -> None:
        folder = checkpoints_of(run)[0]
        file = folder / name
        for damage in (file.read_bytes()[:-9], file.read_bytes().replace(b"1", b"2"), b""):
            file.write_bytes(damage)
            with pytest.raises(CheckpointError, match=f"{name} is .*damaged"):
                read_state(folder)
        file.unlink()
        with pytest.raises(CheckpointError, match="missing"):
            read_state(folder)

    def test_none_is_whole(self, run: Path) -> None:
        for folder in checkpoints_of(run):
            (folder / "model.safetensors").write_bytes(b"")

        with pytest.raises(CheckpointError, match=r"no checkpoint of .* is whole: train again with --force"):
            latest_checkpoint(run, silent)

    def test_a_newer_format_is_not_passed_over(self, run: Path) -> None:
        file = checkpoints_of(run)[0] / "state.json"
        file.write_text(json.dumps({"format_version": FORMAT_VERSION + 1}))

        with pytest.raises(CheckpointError, match="has format 3, and this version of Stampede reads up to 2"):
            latest_checkpoint(run, silent)

    def test_a_write_that_was_cut_short_is_undone(self, run: Path) -> None:
        latest = checkpoints_of(run)[0]
        latest.rename(latest.with_name(f".{latest.name}.replaced"))
        latest.with_name(f".{latest.name}.unfinished").mkdir()

        start = latest_checkpoint(run, silent)

        assert start is not None
        assert start.folder == latest
        assert not list((run / "checkpoints").glob(".*"))

    def test_a_missing_best_is_sought_anew(self, run: Path) -> None:
        shutil.rmtree((run / "best").resolve())
        lines: list[str] = []

        start = latest_checkpoint(run, lines.append)

        assert start is not None
        assert start.state.best_epoch == 0
        assert len(lines) == 1
        assert lines[0].endswith("it was the best so far, and the best is sought anew from here")

    def test_a_damaged_best_is_no_best(self, run: Path, dataset: Dataset) -> None:
        file = run / "best" / "model.safetensors"
        content = bytearray(file.read_bytes())
        content[-5] ^= 1
        file.write_bytes(content)
        lines: list[str] = []

        with pytest.raises(CheckpointError, match=r"model.safetensors is damaged: its checksum is another"):
            load_best(run, trainer(dataset, run, config()).model)
        start = latest_checkpoint(run, lines.append)

        assert start is not None
        assert start.state.best_epoch == 0
        assert "is damaged: its checksum is another; it was the best so far" in lines[0]

    def test_the_last_is_best_where_a_run_that_ended_lost_its_best(
        self, dataset: Dataset, tmp_path: Path
    ) -> None:
        run = tmp_path / "ended"
        values = {"epochs": 6, "learning_rate": 0.03, "embedding_learning_rate": 0.1, "warmup_epochs": 0}
        first = trainer(dataset, run, config(**values)).fit()
        assert first.best_epoch < 6
        (run / "best" / "model.safetensors").write_bytes(b"")

        again = trainer(dataset, run, config(**values), start=latest_checkpoint(run, silent)).fit()

        assert again.best_epoch == 6
        assert again.test is not None
        assert (run / "best").resolve().name == f"step-{6 * BATCHES}"

    def test_a_run_that_was_copied_without_links_goes_on(
        self,
        run: Path,
        dataset: Dataset,
        unbroken: Callable[[TrainConfig], tuple[dict[str, Any], TrainResult]],
    ) -> None:
        copy = run.with_name("copy")
        shutil.copytree(run, copy, symlinks=False)

        settings = config(checkpoint_every="4")
        trainer(dataset, copy, settings, start=latest_checkpoint(copy, silent)).fit()

        assert contents(copy) == unbroken(settings)[0]

    def test_lost_timings_do_not_matter(self, run: Path, dataset: Dataset) -> None:
        (run / "timings.jsonl").unlink()

        trainer(dataset, run, config(), start=latest_checkpoint(run, silent)).fit()

        assert (run / "timings.jsonl").exists()

    def test_records_that_lost_lines_are_refused(self, run: Path, dataset: Dataset) -> None:
        (run / "metrics.jsonl").write_text("")
        start = latest_checkpoint(run, silent)

        with pytest.raises(CheckpointError, match=r"metrics.jsonl is missing, or shorter than"):
            trainer(dataset, run, config(checkpoint_every="4"), start=start).fit()

    def test_another_loader_would_give_other_batches(self, run: Path, dataset: Dataset) -> None:
        start = latest_checkpoint(run, silent)
        assert start is not None
        start.state.order = "permutation-cuda"

        with pytest.raises(CheckpointError, match=r"order 'permutation-cuda'.*kind of device"):
            trainer(dataset, run, config(), start=start)

    def test_another_model_is_refused(self, run: Path, dataset: Dataset) -> None:
        with pytest.raises(CheckpointError, match="another model"):
            trainer(dataset, run, config(hidden=(9,)), start=latest_checkpoint(run, silent))


class TestMoreSteps:
    """A run that ended may be resumed with more epochs or steps, and is then as if it had had them."""

    @pytest.mark.parametrize(
        ("first", "then"),
        [
            ({"epochs": 1}, {}),
            ({"max_steps": 5}, {}),
            ({"max_steps": BATCHES}, {"max_steps": 2 * BATCHES + 1}),
            ({"max_steps": BATCHES + 3}, {"max_steps": BATCHES + 5}),
            ({"epochs": 6, "max_steps": 50}, {"epochs": 6}),  # where a line is due anyway
        ],
    )
    def test_it_goes_on(
        self,
        dataset: Dataset,
        tmp_path: Path,
        unbroken: Callable[[TrainConfig], tuple[dict[str, Any], TrainResult]],
        first: dict[str, Any],
        then: dict[str, Any],
    ) -> None:
        run = tmp_path / "run"
        trainer(dataset, run, config(**first)).fit()

        trainer(dataset, run, config(**then), start=latest_checkpoint(run, silent)).fit()

        assert contents(run) == unbroken(config(**then))[0]

    def test_a_finished_run_gives_its_result_again(self, dataset: Dataset, tmp_path: Path) -> None:
        run = tmp_path / "run"
        first = trainer(dataset, run, config()).fit()
        before = contents(run)

        again = trainer(dataset, run, config(), start=latest_checkpoint(run, silent)).fit()

        assert contents(run) == before
        assert (again.test, again.steps) == (first.test, first.steps)


class TestNotFinite:
    """Row 7 of the training split has an infinite dense value."""

    def poisoned(self, dataset: Dataset, run: Path, **values: Any) -> Trainer:
        made = trainer(dataset, run, config(**values))
        made.train.data.dense[7, 3] = float("inf")  # type: ignore[attr-defined]
        return made

    def test_it_stops_with_step_and_cause_and_keeps_the_rows(self, dataset: Dataset, tmp_path: Path) -> None:
        with pytest.raises(
            StampedeError, match=r"at step \d+ \(epoch 1\): the dense feature I4 of its row"
        ) as stop:
            self.poisoned(dataset, tmp_path).fit()

        (file,) = (tmp_path / "nonfinite").iterdir()
        rows = pl.read_parquet(file)
        assert str(file) in str(stop.value)
        assert rows.height == config().batch_size
        assert rows.columns == ["label", *dataset.dense_columns, *dataset.fields, "logit", "cross_entropy"]
        assert rows.filter(pl.col("I4").is_infinite()).height == 1

    def test_skipping_leaves_the_batch_out_and_counts_it(self, dataset: Dataset, tmp_path: Path) -> None:
        result = self.poisoned(dataset, tmp_path, on_nan="skip").fit()

        lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
        skips = [line for line in lines if line["kind"] == "skip"]
        assert result.skipped == len(skips) == 3  # once an epoch
        assert result.steps == 3 * BATCHES
        assert {line["reason"] for line in skips} == {"the loss is not finite"}
        assert result.test is not None
        assert result.test.auc is not None

    def test_skipping_cannot_help_where_the_weights_are_gone(self, dataset: Dataset, tmp_path: Path) -> None:
        made = trainer(dataset, tmp_path, config(on_nan="skip"))
        with torch.no_grad():
            made.model.embedding.weight[made.model.embedding.starts[5] + 3] = float("nan")

        with pytest.raises(
            StampedeError, match=r"field C6: the embedding of id 3, in its row \d+, is no longer"
        ):
            made.fit()

    @pytest.mark.parametrize("optimizer", ["cowclip", "helen", "sgd"])
    def test_a_step_that_is_not_finite_changes_nothing(
        self, dataset: Dataset, tmp_path: Path, optimizer: str
    ) -> None:
        made = self.poisoned(dataset, tmp_path, on_nan="skip", optimizer=optimizer)
        batches = list(made.train)
        made.take_step(batches[1])
        before = {name: tensor.clone() for name, tensor in made.model.state_dict().items()}

        with pytest.raises(NotFiniteError):
            made.take_step(batches[0])

        assert all(torch.equal(tensor, before[name]) for name, tensor in made.model.state_dict().items())
