"""benchmarks/peers: a short run of it. Takes the libraries too where `make env-peers` has been run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PEERS_PYTHON = ROOT / ".venv-peers/bin/python"


def run_peers(folder: Path, *arguments: object) -> tuple[str, Any]:
    figures = folder / "figures.json"
    small = ["--rows", 2600, "--batch-sizes", 256, "--rounds", 2, "--seconds", 0.02, "--threads", 1]
    words = [sys.executable, "-m", "benchmarks.peers", *small, *arguments, "--json", figures]
    ended = subprocess.run([str(word) for word in words], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout, json.loads(figures.read_text())


@pytest.mark.parametrize(
    "contender",
    [
        "torch-fused",
        pytest.param(
            "deepctr-torch,fuxictr",
            marks=pytest.mark.skipif(not PEERS_PYTHON.exists(), reason="no .venv-peers (make env-peers)"),
        ),
    ],
)
def test_contenders_begin_with_one_loss_and_end_with_about_one_auc(tmp_path: Path, contender: str) -> None:
    names = ["stampede", *contender.split(",")]

    _, figures = run_peers(tmp_path, "--contenders", ",".join(names), "--epoch-rows", 4000)

    assert [figure["contender"] for figure in figures["steps"]] == names
    assert [figure["contender"] for figure in figures["epochs"]] == names
    assert figures["steps"][0]["first_over_it"] == 1
    assert all(figure["memory_bytes"] > 0 for figure in figures["steps"])
    aucs = [figure["auc"] for figure in figures["epochs"]]
    assert max(aucs) - min(aucs) < 0.05


def test_what_cannot_run_is_said_and_left_out(tmp_path: Path) -> None:
    arguments = ["--contenders", "torch-sparse,fuxictr", "--epoch-rows", 0]

    printed, figures = run_peers(tmp_path, *arguments, "--peers-python", tmp_path / "none")

    assert "left out: fuxictr: there is no " in printed
    assert [figure["contender"] for figure in figures["steps"]] == ["torch-sparse"]
