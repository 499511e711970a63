"""``stampede serve`` as a process: its start, its end, and clients that mean no good."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from benchmarks.serve import HOSTILE, head_of, load, sample_of, serving

if TYPE_CHECKING:
    from tests.conftest import Command

Server = tuple[str, subprocess.Popen[str]]


@pytest.fixture(scope="module")
def run(small_run: Path) -> Path:
    return small_run


@pytest.fixture(scope="module")
def server(run: Path) -> Iterator[Server]:
    flags = ("--threads", 1, "--timeout", 1.5, "--max-body", "1MB", "--grace", 5)
    with serving(run, *flags) as started:
        yield started


def port_of(url: str) -> int:
    return int(url.rsplit(":", 1)[1])


def test_good_and_hostile_clients_together(server: Server, run: Path, small_log: Path) -> None:
    url, process = server
    sample = sample_of(run, small_log, rows=300)

    figures = asyncio.run(
        load(url, process.pid, sample, clients=24, hostile=2 * len(HOSTILE), seconds=5, rows_per_request=2)
    )

    assert process.poll() is None
    assert figures.wrong == 0
    assert figures.max_difference < 1e-6
    good = {outcome for outcome in figures.outcomes if outcome.startswith("good")}
    assert good == {"good 200"}
    assert figures.outcomes["good 200"] > 20
    assert not [outcome for outcome in figures.outcomes if outcome.endswith((" 500", "left waiting"))]
    refused = ("no HTTP 400", "two lengths 400", "deep 400", "deep row 400", "NaN 400", "slow body 408")
    too_much = ("huge 413", "huge chunks 413", "wrong types 422", "big number 422")
    ended = ("slow head closed", "half a body closed", "half closed 200")
    assert {*refused, *too_much, *ended} <= set(figures.outcomes)
    assert figures.memory[1] < figures.memory[0] + 100_000_000
    assert httpx.get(f"{url}/health").json()["ready"] is True


def test_a_taken_port_is_one_line(server: Server, stampede: Command, run: Path) -> None:
    answer = stampede("serve", run, "--port", port_of(server[0]))

    assert answer.code == 1
    assert "the port is taken: choose another with --port, or 0 for a free one" in answer.err
    assert answer.err.count("\n") == 1


def test_what_cannot_be_served_is_one_line(stampede: Command, run: Path, tmp_path: Path) -> None:
    assert "Example: stampede serve" in stampede("serve", "--help").out
    damaged = tmp_path / "damaged"
    shutil.copytree(run, damaged, symlinks=True)
    (damaged / "best" / "model.safetensors").write_bytes(b"not weights")
    for arguments, code, words in (
        ((tmp_path / "none",), 1, "does not exist"),
        ((damaged, "--port", 0), 1, "model.safetensors is damaged"),
        ((run, "--host", "host.invalid"), 1, "no such address"),
        ((run, "--max-body", "much"), 2, "--max-body much: it must be a size"),
        ((run, "--grace", "-1"), 2, "--grace"),
    ):
        answer = stampede("serve", *arguments)
        assert (answer.code, answer.err.count("\n")) == (code, 1)
        assert words in answer.err


def test_it_ends_after_the_requests_in_flight_but_not_later_than_the_grace(run: Path) -> None:
    words = [sys.executable, "-m", "stampede", "serve", run, "--port", 0, "--threads", 1, "--grace", 3]
    with subprocess.Popen(
        [str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        place = ("127.0.0.1", int(line.split("http://127.0.0.1:")[1].split(",")[0]))
        with socket.create_connection(place) as client, socket.create_connection(place) as stuck:
            for one in (client, stuck):
                one.sendall(head_of(2))
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
            time.sleep(0.5)
            client.sendall(b"{}")
            answer = client.makefile("rb").read()
            out, err = process.communicate(timeout=90)

    assert line.startswith("stampede: serving deepfm/step-")
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert (out, err, process.returncode) == ("", "stampede: stopped; no request is open\n", 0)
