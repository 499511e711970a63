"""The server around the application: its socket, its start, and its end."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import uvicorn

from stampede import StampedeError
from stampede.workflows.serve.options import MAX_CONNECTIONS, ServeOptions
from stampede.workflows.serve.protocol import GuardedProtocol

KEEP_ALIVE_SECONDS = 5
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

REASONS = {
    errno.EADDRINUSE: "the port is taken: choose another with --port, or 0 for a free one",
    errno.EACCES: "no permission to use the port: choose one above 1023 with --port",
    errno.EADDRNOTAVAIL: "this machine has no such address: choose another with --host",
}


def listen(host: str, port: int) -> socket.socket:
    """Open the socket, so that a taken port shows before a model is loaded.

    Raises
    ------
    StampedeError
        It cannot be opened; says why.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        opened = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise StampedeError(f"--host {host}: no such address") from error
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen(MAX_CONNECTIONS)
    except OSError as error:
        opened.close()
        reason = REASONS.get(error.errno or 0, error.strerror or str(error))
        raise StampedeError(f"cannot listen on {host}, port {port}: {reason}") from error
    return opened


def url_of(opened: socket.socket) -> str:
    """Return the address of a listening socket, as http://HOST:PORT."""
    host, port = opened.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve_app(
    app: Any,
    opened: socket.socket,
    *,
    options: ServeOptions,
    on_started: Callable[[], None],
    on_stop: Callable[[], None],
) -> None:
    """Serve until a signal to stop comes, then end what is in flight within ``options.grace`` seconds.

    A second signal ends it at once.
    """
    config = uvicorn.Config(
        app,
        http=GuardedProtocol.within(options.timeout),
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=options.grace,  # type: ignore[arg-type]  # asyncio takes fractions
    )
    asyncio.run(_Server(config, on_started, on_stop).serve(sockets=[opened]))


class _Server(uvicorn.Server):
    """Says when it serves, and takes a signal as the wish to end well."""

    def __init__(
        self, config: uvicorn.Config, on_started: Callable[[], None], on_stop: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._on_started, self._on_stop = on_started, on_stop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve, and say so."""
        await super().startup(sockets)
        self._on_started()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take the signals to stop for a while; uvicorn's own would be raised again at the end."""
        before = {number: signal.signal(number, self._stop) for number in STOP_SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, _signal: int, _frame: FrameType | None) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True
        self._on_stop()
