"""Connections that a client wants to hold: by not reading, by not writing, by closing one side."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.types import Receive, Scope, Send

from stampede.workflows.serve.protocol import GuardedProtocol
from stampede.workflows.serve.server import listen

SECONDS = 0.4
LARGE = 32_000_000
ASK = b"GET /%s HTTP/1.1\r\nHost: server\r\n\r\n"


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer /large with 32 MB and /late after a while."""
    if scope["path"] == "/late":
        await asyncio.sleep(2 * SECONDS)
    size = LARGE if scope["path"] == "/large" else 2
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % size)]})
    await send({"type": "http.response.body", "body": b"x" * size})


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[str, int]]:
    config = uvicorn.Config(
        answer, http=GuardedProtocol.within(SECONDS), ws="none", lifespan="off", log_config=None
    )
    opened = listen("127.0.0.1", 0)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve([opened]))
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield opened.getsockname()
    finally:
        server.should_exit = True
        await task


async def read_after(seconds: float, data: bytes, *, eof: bool = False) -> bytes:
    """Send, read nothing for a while, then what is there; a reset ends it like a close."""
    async with serving() as place:
        client = socket.create_connection(place)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(client, data)
        if eof:
            client.shutdown(socket.SHUT_WR)
        await asyncio.sleep(seconds)
        found = bytearray()
        try:
            while chunk := await asyncio.wait_for(loop.sock_recv(client, 1 << 20), 10):
                found += chunk
        except ConnectionResetError:
            pass
        finally:
            client.close()
        return bytes(found)


def test_a_client_that_does_not_read_is_cut_off() -> None:
    assert len(asyncio.run(read_after(0.0, ASK % b"large", eof=True))) > LARGE
    assert len(asyncio.run(read_after(4 * SECONDS, ASK % b"large"))) < LARGE


def test_a_head_that_does_not_end_is_cut_off() -> None:
    assert asyncio.run(read_after(0.0, b"GET / HTTP/1.1\r\nHost: ")) == b""
    assert asyncio.run(read_after(0.0, b"")) == b""


def test_a_second_head_that_does_not_end_is_cut_off() -> None:
    found = asyncio.run(read_after(0.0, ASK % b"" + b"GET / HTTP/1.1\r\n"))

    assert found.count(b"HTTP/1.1 200 OK") == 1


def test_a_late_answer_is_no_late_head() -> None:
    assert asyncio.run(read_after(0.0, ASK % b"late")).endswith(b"xx")


def test_a_client_that_closes_its_side_gets_its_answer() -> None:
    assert asyncio.run(read_after(0.0, ASK % b"late", eof=True)).endswith(b"xx")


def test_no_http_after_a_request_is_refused_after_its_answer() -> None:
    found = asyncio.run(read_after(0.0, ASK % b"late" + b"\x00\x01 no HTTP\r\n\r\n"))

    assert found.startswith(b"HTTP/1.1 200 OK")
    assert b"HTTP/1.1 400 Bad Request" in found
    assert found.endswith(b'{"error": "invalid HTTP request received"}')
