"""The ``Example:`` in each command's help has flags that are there, and runs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.docs.command_lines import COMMANDS, GROUP, examples_of, faults_of, stampede_commands
from tests.docs.runner import environment
from tests.docs.supplies import Supplies

SUPPLIES = ("train.txt", "new_rows.txt", "log.gz", "data/criteo", "runs/deepfm", "runs/dcn-v2")
SCALED = {
    "train": ("--batch-size 8192", "--batch-size 1024 --epochs 1"),
    "synth": ("--rows 1000000", "--rows 2000"),
    "compare": ("--split test", "--split test --bootstrap 100"),
    "importance": ("--split test", "--split test --repeats 1"),
    "sweep": (
        "--batch-sizes 1024,8192 --rules cowclip,none",
        "--batch-sizes 1024 --rules cowclip --seeds 1 --epochs 1",
    ),
}
"""Command -> what is made smaller before its example runs."""
NOT_RUN = {"serve": "it goes on until it is stopped; docs/how-to/serve.md does both"}
"""Command -> why its example is not run."""


@pytest.mark.parametrize("name", COMMANDS)
def test_flags_of_an_example_are_real(name: str) -> None:
    examples = examples_of(name)

    assert examples
    for example in examples:
        for words in stampede_commands(example):
            assert not faults_of(words)


def test_flags_of_the_examples_of_the_whole_program_are_real() -> None:
    commands = stampede_commands(GROUP.epilog.replace("\b", "").replace("Example:", ""))

    assert len(commands) >= 4
    assert not [fault for words in commands for fault in faults_of(words)]


@pytest.mark.timeout(900)  # the first makes data and runs for all, and the machine may be busy
@pytest.mark.parametrize("name", COMMANDS)
def test_an_example_runs(name: str, tmp_path: Path, supplies: Supplies) -> None:
    if name in NOT_RUN:
        pytest.skip(f"stampede {name}: {NOT_RUN[name]}")
    for thing in SUPPLIES:
        supplies.give(thing, tmp_path)
    for example in examples_of(name):
        if name in SCALED:
            assert SCALED[name][0] in example
        command = example.replace(*SCALED.get(name, ("", "")))
        command += " --force" if "--out" in command and "--force" not in command else ""
        done = subprocess.run(
            ["bash", "-euc", command],
            cwd=tmp_path,
            env=environment(tmp_path / "bin"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
