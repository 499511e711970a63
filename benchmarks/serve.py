"""Load a server of `stampede serve` with good and with hostile clients, and check every score.

    python benchmarks/serve.py runs/deepfm train.txt --clients 150 --hostile 50 --seconds 20

The good clients keep their connection and send rows of the log, one request after the other; each score is
compared with that of ``stampede predict`` on the same rows. The hostile ones, a quarter as many of each kind
as there are kinds, send bodies that come slowly, too much, too deep, half, or no HTTP at all. Printed are
requests and rows a second, the latency of the good clients, the server's CPU time a request, what became of
each kind of request, and the server's memory after a third of the time and at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import polars as pl

TOLERANCE = 1e-6  # a logit's last digits follow the rows that are multiplied at once

Reader: TypeAlias = asyncio.StreamReader
Writer: TypeAlias = asyncio.StreamWriter


@dataclass
class Figures:
    """What a load came to."""

    latencies: list[float] = field(default_factory=list)
    rows: int = 0
    wrong: int = 0
    max_difference: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    memory: list[int] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """Return them for people and files."""
        milliseconds = np.array(self.latencies or [np.nan]) * 1e3
        return {
            "requests_per_second": round(len(self.latencies) / self.seconds, 1),
            "rows_per_second": round(self.rows / self.seconds, 1),
            "p50_ms": round(float(np.percentile(milliseconds, 50)), 2),
            "p99_ms": round(float(np.percentile(milliseconds, 99)), 2),
            "max_ms": round(float(milliseconds.max()), 2),
            "server_cpu_share": round(self.cpu_seconds / self.seconds, 2),
            "server_cpu_ms_per_request": round(self.cpu_seconds / sum(self.outcomes.values()) * 1e3, 2),
            "wrong_scores": self.wrong,
            "max_difference": self.max_difference,
            "outcomes": dict(sorted(self.outcomes.items())),
            "memory_mb": [round(size / 1e6, 1) for size in self.memory],
        }


@dataclass(frozen=True)
class Sample:
    """Rows of a log as JSON objects, and their scores by ``stampede predict``."""

    rows: list[dict[str, str]]
    scores: list[float]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("log", type=Path, help="text file of the run's log, without a header")
    parser.add_argument("--clients", type=int, default=150)
    parser.add_argument("--hostile", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rows-per-request", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    options = parser.parse_args()
    sample = sample_of(options.run, options.log, rows=2000)
    flags = ("--threads", options.threads, "--timeout", 3, "--max-body", "4MB")
    with serving(options.run, *flags) as (url, process):
        figures = asyncio.run(
            load(
                url,
                process.pid,
                sample,
                clients=options.clients,
                hostile=options.hostile,
                seconds=options.seconds,
                rows_per_request=options.rows_per_request,
            )
        )
    document = figures.document()
    print(json.dumps(document, indent=1))
    if options.json:
        options.json.write_text(json.dumps(document) + "\n", "utf-8")
    if figures.wrong:
        sys.exit("some scores are wrong")


def sample_of(run: Path, log: Path, *, rows: int) -> Sample:
    """Take the first rows of a log, and score them from a file."""
    from stampede.workflows.predict import run_predict
    from stampede.workflows.run import Run

    schema = Run.open(run).encoder.schema
    with log.open("r", encoding="utf-8", newline="\n") as lines:
        text = list(itertools.islice(lines, rows))
    with tempfile.TemporaryDirectory() as folder:
        head = Path(folder) / "head.tsv"
        head.write_text("".join(text), "utf-8")
        run_predict(run, [str(head)], out=Path(folder) / "scores.parquet", force=False)
        scores = pl.read_parquet(Path(folder) / "scores.parquet")["score"].to_list()
    split = [line.rstrip("\n").split("\t") for line in text]
    return Sample([dict(zip(schema.columns, fields, strict=True)) for fields in split], scores)


@contextmanager
def serving(run: Path, *flags: object) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run a server of its own; gives its address and process, and stops it."""
    words = [sys.executable, "-m", "stampede", "serve", run, "--port", 0, "--json", *flags]
    with subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise RuntimeError("the server did not start")
            yield json.loads(line)["url"], process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(90)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
            if process.returncode:
                raise RuntimeError(f"the server ended with exit code {process.returncode}")


async def load(
    url: str,
    pid: int,
    sample: Sample,
    *,
    clients: int,
    hostile: int,
    seconds: float,
    rows_per_request: int = 1,
) -> Figures:
    """Run all clients against a server for some seconds."""
    figures = Figures()
    host, port = url.removeprefix("http://").split(":")
    place = (host, int(port))
    started, cpu_before = time.perf_counter(), cpu_seconds(pid)
    ends = started + seconds
    tasks = [
        asyncio.create_task(_good_client(place, sample, figures, ends, number, rows_per_request))
        for number in range(clients)
    ]
    kinds = list(HOSTILE.items())
    tasks += [
        asyncio.create_task(_hostile_client(place, *kinds[number % len(kinds)], figures, ends))
        for number in range(hostile)
    ]
    await asyncio.sleep(seconds / 3)
    figures.memory.append(resident_memory(pid))
    await asyncio.gather(*tasks)
    figures.seconds, figures.cpu_seconds = time.perf_counter() - started, cpu_seconds(pid) - cpu_before
    figures.memory.append(resident_memory(pid))
    return figures


def resident_memory(pid: int) -> int:
    """Return the resident memory of a process, in bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process, of all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _good_client(
    place: tuple[str, int], sample: Sample, figures: Figures, ends: float, number: int, rows: int
) -> None:
    """Send rows one request after the other over one connection, and compare the scores."""
    draw = random.Random(number)
    async with connection(place) as (reader, writer):
        while time.perf_counter() < ends:
            chosen = [draw.randrange(len(sample.rows)) for _ in range(rows)]
            picked = [sample.rows[index] for index in chosen]
            body = json.dumps({"rows": picked} if rows > 1 else picked[0]).encode()
            sent = time.perf_counter()
            writer.write(head_of(len(body)) + body)
            status, answer = await answer_of(reader)
            figures.outcomes[f"good {status}"] += 1
            if status != 200:
                continue
            figures.latencies.append(time.perf_counter() - sent)
            figures.rows += rows
            document = json.loads(answer)
            scores = document["scores"] if rows > 1 else [document["score"]]
            wanted = [sample.scores[index] for index in chosen]
            difference = max(abs(a - b) for a, b in zip(scores, wanted, strict=True))
            figures.max_difference = max(figures.max_difference, difference)
            figures.wrong += not difference <= TOLERANCE


async def _hostile_client(
    place: tuple[str, int],
    kind: str,
    attack: Callable[[Reader, Writer], Awaitable[object]],
    figures: Figures,
    ends: float,
) -> None:
    """Do one thing again and again, and note what comes of it."""
    while time.perf_counter() < ends:
        try:
            async with connection(place) as (reader, writer):
                outcome = await asyncio.wait_for(attack(reader, writer), 20)
        except (ConnectionError, asyncio.IncompleteReadError):
            outcome = "closed"
        except TimeoutError:
            outcome = "left waiting"
        figures.outcomes[f"{kind} {outcome}"] += 1
        await asyncio.sleep(0.05)


@asynccontextmanager
async def connection(place: tuple[str, int]) -> AsyncIterator[tuple[Reader, Writer]]:
    """Open a connection, and close it."""
    reader, writer = await asyncio.open_connection(*place)
    try:
        yield reader, writer
    finally:
        writer.close()


def head_of(length: int | None, *more: str) -> bytes:
    """Write the head of a request for scores; without a length the body is chunked."""
    size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    lines = ["POST /predict HTTP/1.1", "Host: server", "Content-Type: application/json", size, *more, "", ""]
    return "\r\n".join(lines).encode()


async def answer_of(reader: Reader) -> tuple[int, bytes]:
    """Read one answer: its status and its body."""
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    fields = dict(line.lower().split(": ", 1) for line in lines if line)
    return int(first.split()[1]), await reader.readexactly(int(fields.get("content-length", "0")))


async def _status(reader: Reader, writer: Writer, body: bytes, *, length: int | None = -1) -> int:
    """Send a body, whole, and return the status of the answer."""
    writer.write(head_of(len(body) if length == -1 else length) + body)
    status, _ = await answer_of(reader)
    return status


async def _slow_body(reader: Reader, writer: Writer) -> int:
    writer.write(head_of(1000))
    answer = asyncio.ensure_future(answer_of(reader))
    while not answer.done():
        writer.write(b" ")
        await asyncio.wait([answer], timeout=0.2)
    return answer.result()[0]


async def _slow_head(reader: Reader, writer: Writer) -> str:
    closed = asyncio.ensure_future(reader.read())
    for letter in itertools.cycle(b"X-Header: a\r\n"):
        writer.write(bytes([letter]))
        await asyncio.wait([closed], timeout=0.2)
        if closed.done():
            return "answered" if closed.result() else "closed"
    raise AssertionError


async def _huge(reader: Reader, writer: Writer) -> int:
    """Send more than is allowed, with a true length."""
    return await _status(reader, writer, b'{"C1": "' + b"a" * 5_000_000 + b'"}')


async def _huge_chunks(reader: Reader, writer: Writer) -> int:
    """Send chunks without end."""
    writer.write(head_of(None))
    answer = asyncio.ensure_future(answer_of(reader))
    chunk = b"40000\r\n" + b"a" * 0x40000 + b"\r\n"
    while not answer.done():
        writer.write(chunk)
        sent = asyncio.ensure_future(writer.drain())
        await asyncio.wait([sent, answer], return_when="FIRST_COMPLETED")
        sent.cancel()
        await asyncio.gather(sent, return_exceptions=True)  # it fails where the server has closed
    return answer.result()[0]


async def _half_closed(reader: Reader, writer: Writer) -> int:
    """Close the side that sends, and wait for the answer."""
    writer.write(head_of(2) + b"{}")
    writer.write_eof()
    status, _ = await answer_of(reader)
    return status


async def _half_body(reader: Reader, writer: Writer) -> str:
    """Close the side that sends in the midst of the body."""
    writer.write(head_of(100) + b'{"I1": ')
    writer.write_eof()
    return "answered" if await reader.read() else "closed"


async def _reset(reader: Reader, writer: Writer) -> str:
    """Go away before the answer comes."""
    writer.write(head_of(2) + b"{}")
    await writer.drain()
    writer.transport.abort()
    return "gone"


async def _never_reads(reader: Reader, writer: Writer) -> str:
    """Ask for much and read nothing."""
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(b"GET /openapi.json HTTP/1.1\r\nHost: server\r\n\r\n" * 30)
    await asyncio.sleep(2)
    return "gone"


def _sends(body: bytes, **how: Any) -> Callable[[Reader, Writer], Awaitable[object]]:
    return lambda reader, writer: _status(reader, writer, body, **how)


def _sends_raw(data: bytes) -> Callable[[Reader, Writer], Awaitable[object]]:
    async def attack(reader: Reader, writer: Writer) -> int:
        writer.write(data)
        status, _ = await answer_of(reader)
        return status

    return attack


HOSTILE: dict[str, Callable[[Reader, Writer], Awaitable[object]]] = {
    "slow body": _slow_body,
    "slow head": _slow_head,
    "huge": _huge,
    "huge chunks": _huge_chunks,
    "half closed": _half_closed,
    "half a body": _half_body,
    "reset": _reset,
    "never reads": _never_reads,
    "no HTTP": _sends_raw(b"\x16\x03\x01" + b"a" * 200 + b"\r\n\r\n"),
    "two lengths": _sends_raw(head_of(2, "Content-Length: 3") + b"{}"),
    "no JSON": _sends(b"\xff\x00{]"),
    "deep": _sends(b"[" * 200_000 + b"]" * 200_000),
    "deep row": _sends(b'{"I1":' * 100_000 + b"1" + b"}" * 100_000),
    "wrong types": _sends(b'{"rows": [{"I1": {"a": 1}}, 3, null]}'),
    "big number": _sends(b'{"I1": ' + b"9" * 100_000 + b"}"),
    "many rows": _sends(b'{"rows": [' + b"{}," * 1_000_000 + b"{}]}"),
    "many numbers": _sends(b"[" + b"1," * 1_500_000 + b"1]"),
    "NaN": _sends(b'{"I1": NaN}'),
}


if __name__ == "__main__":
    main()
