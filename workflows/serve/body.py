"""Reading the body of a request: within a size, a time, and what all requests together may hold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.requests import ClientDisconnect, Request

from stampede.workflows.serve.options import BODIES_HELD, SMALL_BODY
from stampede.workflows.serve.refusal import Refusal

DRAIN_SECONDS = 2.0
"""How long a client that sends too much may go on, so that it can read why it is refused."""


@dataclass
class BodyMemory:
    """The bytes of bodies that are in memory, each request's first 64 KiB left out."""

    limit: int
    held: int = 0

    @classmethod
    def for_bodies_of(cls, max_body: int) -> BodyMemory:
        """Allow eight bodies of the largest size."""
        return cls(BODIES_HELD * max_body)

    @contextmanager
    def lease(self) -> Iterator[Lease]:
        """Give what a request holds back at its end."""
        lease = Lease(self)
        try:
            yield lease
        finally:
            self.held -= lease.held


@dataclass
class Lease:
    """What one request holds."""

    memory: BodyMemory
    size: int = 0
    held: int = 0

    def grow(self, size: int) -> None:
        """Take so many bytes more.

        Raises
        ------
        Refusal
            503 where too many are held.
        """
        self.size += size
        more = max(0, self.size - SMALL_BODY) - self.held
        if self.memory.held + more > self.memory.limit:
            raise Refusal(503, "the server holds as many bodies as it may: try again", close=True)
        self.memory.held += more
        self.held += more


async def read_body(
    request: Request,
    lease: Lease,
    *,
    max_body: int,
    timeout: float,
    check: Callable[[Request], None] = lambda _: None,
) -> bytearray:
    """Read a body.

    Parameters
    ----------
    check:
        Refuses requests by their head.

    Raises
    ------
    Refusal
        As ``check`` says; 413 where it is larger, 408 where it does not come in time, 503 where other bodies
        fill the memory.
    ClientDisconnect
        The client went away.
    """
    stream = request.stream()
    body = bytearray()
    try:
        async with asyncio.timeout(timeout):
            check(request)
            declared = request.headers.get("content-length", "")
            _check_size(int(declared) if declared.isdecimal() else 0, max_body)
            async for chunk in stream:
                _check_size(len(body) + len(chunk), max_body)
                lease.grow(len(chunk))
                body += chunk
    except TimeoutError:
        raise Refusal(408, f"the body did not come within {timeout:g} s", close=True) from None
    except Refusal:
        body.clear()
        if "expect" not in request.headers:  # such a client waits to be told to send
            await _drain(stream)
        raise
    return body


def _check_size(size: int, max_body: int) -> None:
    if size > max_body:
        raise Refusal(413, f"the body is larger than {max_body} bytes", close=True)


async def _drain(stream: AsyncIterator[bytes]) -> None:
    """Let what still comes fall away for a while: a client that is cut off while it sends reads no answer."""
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            async for _ in stream:
                pass
    except (TimeoutError, ClientDisconnect):
        pass
