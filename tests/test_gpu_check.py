"""benchmarks/gpu_check.sh on the CPU, with tiny sizes: what it runs, and what becomes of what fails."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from benchmarks.gpu_check.engines import differences_of
from benchmarks.gpu_check.environment import NEEDED
from benchmarks.gpu_check.options import Options, parse
from benchmarks.gpu_check.process import run_section
from benchmarks.gpu_check.sections import LIMITS

ROOT = Path(__file__).parents[1]
TINY = (
    *("--batch-sizes", 64, "--table-rows", 2600, "--precisions", "float32,bf16,tf32", "--steps", 2),
    *("--hidden", "16,16", "--epoch-rows", 60_000, "--held-out-rows", 5_000, "--epoch-table-rows", 260),
    *("--epoch-batch-size", 256, "--epochs", 2, "--log-rows", 1000, "--log-batch-size", 256),
    *("--log-epochs", 1, "--log-recipes", "small", "--log-precision", "float32"),
)

ROGUE = """
import os, time
from benchmarks.gpu_check.record import Part

def missing(options):
    return None

def good(findings):
    findings.note(figure=1.5)

def raises(findings):
    findings.note(figure=float("nan"))
    raise ValueError("no such thing")

def parts(options):
    return [
        Part("raises", raises),
        Part("dies", lambda findings: os._exit(9)),
        Part("hangs", lambda findings: time.sleep(60)),
        Part("finds a fault", lambda findings: findings.fault("2 is not 3")),
        Part("has no time", good, needs_seconds=1e6),
        Part("is good", good),
    ]
"""


@dataclass(frozen=True)
class Check:
    code: int
    document: dict[str, Any]
    printed: str

    @property
    def states(self) -> dict[str, str]:
        return {name: section["state"] for name, section in self.document["sections"].items()}


def gpu_check(folder: Path, *arguments: object) -> Check:
    result = folder / "result.json"
    words = [ROOT / "benchmarks/gpu_check.sh", result, *arguments]
    environment = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [str(word) for word in words], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert result.exists(), ended.stderr
    return Check(ended.returncode, json.loads(result.read_text()), ended.stdout)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Check:
    return gpu_check(tmp_path_factory.mktemp("check"), "--device", "cpu", *TINY)


def options_of(*arguments: object) -> Options:
    return parse([str(argument) for argument in arguments], LIMITS)[1]


def test_every_section_runs_or_says_why_not(whole: Check) -> None:
    assert whole.code == 0, whole.printed
    assert whole.document["ok"]
    assert whole.states == {
        "environment": "ok",
        "kernels": "left out",
        "step": "ok",
        "epoch": "ok",
        "train": "ok",
        "prepare": "left out",
    }
    sections = whole.document["sections"]
    assert sections["kernels"]["reason"] == "the kernels are a GPU's"
    assert sections["environment"]["parts"]["software"]["versions"]["torch"] is not None
    assert all(f"\n{name} " in f"\n{whole.printed}" for name in sections)


def test_step_has_speed_loss_and_phases(whole: Check) -> None:
    parts = whole.document["sections"]["step"]["parts"]

    assert list(parts) == ["2,600 rows, float32, batch 64", "2,600 rows, bf16, batch 64"]  # tf32 is of GPUs
    eager = parts["2,600 rows, float32, batch 64"]["eager"]
    assert eager["samples_per_second"] > 0
    assert 0 < eager["loss"] < 1
    phases = eager["phase_milliseconds"]
    assert {"lookup", "forward", "backward", "update embedding", "other", "whole step"} <= set(phases)
    assert sum(phases.values()) == pytest.approx(2 * phases["whole step"])


def test_epoch_learns_what_was_planted(whole: Check) -> None:
    parts = whole.document["sections"]["epoch"]["parts"]

    assert list(parts) == ["cowclip, float32, 1 epoch", "linear, no clip, bf16, 1 epoch", "cowclip, bf16"]
    last = parts["cowclip, bf16"]
    assert len(last["epochs"]) == 2
    assert 0.5 < last["auc"] < last["true_auc"] < 1
    assert 0.15 < last["click_rate"] < 0.35
    seconds = 10 * last["seconds_per_epoch"] * 41_256_555 / last["rows"]
    assert last["projected_seconds"] == pytest.approx(seconds)


def test_train_takes_the_commands_from_a_log_to_an_auc(whole: Check) -> None:
    parts = whole.document["sections"]["train"]["parts"]

    assert list(parts) == ["synth", "prepare small", "train small", "evaluate small"]
    assert parts["evaluate small"]["auc"] == parts["train small"]["test"]["auc"]
    assert parts["evaluate small"]["auc_difference"] == 0


def test_a_device_that_is_not_there_is_recorded_and_the_next_section_runs(tmp_path: Path) -> None:
    check = gpu_check(tmp_path, "--device", "nowhere", "--sections", "step,environment", *TINY)

    assert check.code == 1
    assert not check.document["ok"]
    assert check.states == {"step": "failed", "environment": "failed"}
    step, environment = (check.document["sections"][name]["parts"] for name in check.states)
    assert all("device" in part["error"] for part in step.values())
    assert environment["software"]["state"] == "ok"
    assert environment["device"]["state"] == "failed"
    assert "ERROR" in check.printed


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the script sets for the processes of sections, and a folder of a section of our own."""
    paths = (tmp_path, ROOT / "src", ROOT)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(path) for path in paths))


@pytest.fixture
def rogue(tmp_path: Path, workers: None) -> str:
    (tmp_path / "rogue.py").write_text(ROGUE)
    return "rogue"


def test_a_part_that_fails_dies_or_hangs_leaves_the_others(tmp_path: Path, rogue: str) -> None:
    section = run_section(rogue, options_of(), folder=tmp_path, limit=60, part_limit=1.5)

    parts = section["parts"]
    assert section["state"] == "failed"
    assert section["error"] is None
    assert {name: part["state"] for name, part in parts.items()} == {
        "raises": "failed",
        "dies": "failed",
        "hangs": "failed",
        "finds a fault": "failed",
        "has no time": "left out",
        "is good": "ok",
    }
    assert parts["raises"]["error"].endswith("ValueError: no such thing")
    assert parts["raises"]["figure"] == "nan"
    assert parts["dies"]["error"].startswith("the process ended with 9")
    assert parts["hangs"]["error"] == "no end after 1.5 s"
    assert parts["finds a fault"]["faults"] == ["2 is not 3"]
    assert parts["is good"]["figure"] == 1.5


def test_a_section_that_outlives_its_limit_keeps_what_it_found(tmp_path: Path, rogue: str) -> None:
    section = run_section(rogue, options_of(), folder=tmp_path, limit=2, part_limit=60)

    assert section["state"] == "failed"
    assert section["error"] == "stopped after 2 s"
    assert section["seconds"] < 10
    assert section["parts"]["raises"]["figure"] == "nan"


def test_a_section_that_does_not_begin_is_given_up(tmp_path: Path, workers: None) -> None:
    section = run_section("no_such_module", options_of(), folder=tmp_path, limit=60, part_limit=60)

    assert section["state"] == "failed"
    assert "no_such_module" in section["error"]


def test_the_step_can_be_imported_without_polars_and_pydantic() -> None:
    program = (
        "import sys; sys.modules.update(polars=None, pydantic=None)\n"
        "from benchmarks.gpu_check.sections import section_named\n"
        "for name in ('step', 'epoch'): section_named(name)\n"
        "print('polars' in sys.modules and sys.modules['polars'].__name__)"
    )
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}

    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )

    assert ended.stdout == "polars\n", ended.stderr


def test_datasets_differ_by_values_not_by_compression(tmp_path: Path, small_dataset: Path) -> None:
    packed, other = tmp_path / "packed", tmp_path / "other"
    for copy in (packed, other):
        shutil.copytree(small_dataset, copy)
    file = next((packed / "test").glob("*.parquet"))
    rows = pl.read_parquet(file)
    rows.write_parquet(file, compression="uncompressed")
    rows.with_columns(label=(1 - pl.col("label")).cast(pl.Int8)).write_parquet(other / "test" / file.name)

    assert differences_of(small_dataset, packed)[0] == []
    assert differences_of(small_dataset, other)[0] == [f"test/{file.name}: other values in label"]


def test_arguments_that_mean_nothing_are_a_usage_error() -> None:
    for words in (["--sections", "stepp"], ["--limit", "step"], ["--limit", "stepp=3"]):
        with pytest.raises(SystemExit) as stop:
            parse(words, LIMITS)
        assert stop.value.code == 2


def test_what_is_looked_for_is_what_the_package_depends_on() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {line.split(">=")[0].replace("-", "_") for line in project["dependencies"]}

    assert set(NEEDED) == names
