"""Runs a page: its blocks in order, in one folder, each held to its exit code and to the text after it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import tomllib
import traceback
from contextlib import ExitStack, chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from tests.docs.command_lines import faults_of, stampede_commands
from tests.docs.pages import Block, PageError, blocks_of
from tests.docs.supplies import Supplies

ROOT = Path(__file__).parent.parent.parent
SHOWN = ("text",)
DATA_LANGUAGES = ("toml", "json")
LANGUAGES = ("sh", "python", *SHOWN, *DATA_LANGUAGES)
STOP_SECONDS = 30


class BlockFailed(Exception):
    """A block that does not do what its page says."""


def environment(bin_folder: Path) -> dict[str, str]:
    """Return the variables of a page's commands, with a ``stampede`` of this interpreter on the PATH."""
    bin_folder.mkdir(parents=True, exist_ok=True)
    for name, words in {"stampede": "-m stampede", "python": ""}.items():
        shim = bin_folder / name
        shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        shim.chmod(0o755)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return os.environ | {
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "ROOT": str(ROOT),
        "PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "POLARS_MAX_THREADS": "2",
        "COLUMNS": "200",
    }


@dataclass
class PageRun:
    """A page while it is run.

    Attributes
    ----------
    ran, skipped:
        The blocks that were run, and those that were not with the reason.
    """

    page: Path
    folder: Path
    supplies: Supplies
    environment: dict[str, str]
    ran: list[Block] = field(default_factory=list)
    skipped: list[tuple[Block, str]] = field(default_factory=list)
    _printed: str | None = None
    _names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__page__"})
    _running: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = field(default_factory=list)

    def run(self) -> None:
        """Run every block.

        Raises
        ------
        BlockFailed, PageError
            Names page and line.
        """
        try:
            for block in blocks_of(self.page):
                self._block(block)
        finally:
            self._stop()

    def _block(self, block: Block) -> None:
        if block.language not in LANGUAGES:
            raise PageError(f"{block.where}: a block of language {block.language!r}, which no test knows")
        for names in block.all("needs"):
            for name in names:
                self.supplies.give(name, self.folder)
        if block.language in SHOWN:
            self._compare(block)
            return
        if block.language in DATA_LANGUAGES:
            self._data(block)
            return
        if block.language == "sh":
            check_flags(block)
        if (skip := block.one("skip")) is not None:
            self.skipped.append((block, skip[0]))
            self._printed = None
            return
        for (command,) in block.all("first"):
            self._shell(command, block, code=0)
        if block.language == "python":
            self._python(block)
        elif (background := block.one("background")) is not None:
            self._start(block, background[0])
        else:
            self._printed = self._shell(block.scaled, block, code=int((block.one("exit") or ("0",))[0]))
        self.ran.append(block)

    def _shell(self, text: str, block: Block, *, code: int) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        printed = done.stdout.decode(errors="replace")
        if done.returncode != code:
            raise BlockFailed(f"{block.where}: exit code {done.returncode}, not {code}\n{text}\n{printed}")
        return printed

    def _python(self, block: Block) -> None:
        printed = StringIO()
        with ExitStack() as stack:
            stack.enter_context(chdir(self.folder))
            stack.enter_context(redirect_stdout(printed))
            stack.enter_context(redirect_stderr(printed))
            try:
                code = compile("\n" * block.line + block.scaled, str(block.page), "exec")
                exec(code, self._names)  # the code of our own page is what is tested
            except Exception as error:
                raise BlockFailed(f"{block.where}: {traceback.format_exc()}") from error
        self._printed = printed.getvalue()

    def _data(self, block: Block) -> None:
        try:
            (tomllib if block.language == "toml" else json).loads(block.text)
        except ValueError as error:
            raise BlockFailed(f"{block.where}: no {block.language}: {error}") from error
        if (file := block.one("file")) is not None:
            (self.folder / file[0]).write_text(block.text)
            self.ran.append(block)

    def _start(self, block: Block, url: str) -> None:
        log = (self.folder / f"background-{len(self._running)}.log").open("w+b")
        process = subprocess.Popen(
            ["bash", "-euc", f"exec {block.scaled.strip()}"],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        self._running.append((process, log))
        url = os.path.expandvars(url.replace("$PORT", self.environment["PORT"]))
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            try:
                with urlopen(url, timeout=5):
                    break
            except HTTPError:
                break  # it answers
            except (URLError, OSError):
                time.sleep(0.1)
        else:
            log.seek(0)
            raise BlockFailed(
                f"{block.where}: nothing answers at {url}\n{log.read().decode(errors='replace')}"
            )
        log.seek(0)
        self._printed = log.read().decode(errors="replace")

    def _stop(self) -> None:
        """End what runs in the background, as Ctrl-C does; it must end by itself then."""
        stuck = []
        for process, log in self._running:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                    stuck.append(str(process.args))
            log.close()
        self._running.clear()
        if stuck and sys.exc_info()[0] is None:
            raise BlockFailed(f"{self.page.name}: does not stop when it is interrupted: {stuck}")

    def _compare(self, block: Block) -> None:
        """Hold a text against what the block before it printed, where that was run."""
        how = block.one("output") or ("words",)
        if how[0] == "free":
            if len(how) != 2:
                raise PageError(f"{block.where}: output free says no reason")
            return
        if self._printed is None:
            return
        if how == ("exact",):
            if block.text.strip() not in self._printed:
                raise BlockFailed(f"{block.where}: not what was printed:\n{block.text}\nbut\n{self._printed}")
        elif how == ("words",):
            printed = words_of(self._printed)
            if missing := sorted(words_of(block.text) - printed):
                raise BlockFailed(f"{block.where}: {missing} was not printed:\n{self._printed}")
        else:
            raise PageError(f"{block.where}: output {' '.join(how)}: exact, or free and a reason")


def words_of(text: str) -> set[str]:
    """Return the words of an output that do not differ from machine to machine: those of letters alone."""
    return {word.strip("_-") for word in re.findall(r"(?<![\w.…])[A-Za-z][A-Za-z_-]+(?![\w.…])", text)}


def check_flags(block: Block) -> None:
    """Hold every command line of a shell block against the real one, run or not."""
    texts = (block.text, block.scaled.replace("$PORT", "8000"))
    faults = [fault for text in texts for words in stampede_commands(text) for fault in faults_of(words)]
    if faults:
        raise BlockFailed(f"{block.where}: {'; '.join(dict.fromkeys(faults))}")
