"""What a server allows, and where it listens."""

from __future__ import annotations

from dataclasses import dataclass

from stampede import ConfigError
from stampede.training.config import Device

MAX_CONNECTIONS = 1000
"""Connections that are served at once; further ones are answered with 503."""

SMALL_BODY = 1 << 16
"""Bytes of a request that are never refused for what other requests hold."""

BODIES_HELD = 8
"""Bodies of the largest size that may be in memory at once, besides the small ones."""


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """How a run is served.

    Attributes
    ----------
    port:
        0 takes a free one.
    max_rows, max_body:
        Most rows and bytes of one request.
    timeout:
        Seconds within which the head of a request, and then its body, must have come.
    grace:
        Seconds that requests in flight have to end in when the server stops.
    device, threads:
        Where to compute; None as the run did.
    debug:
        Whether unexpected errors are printed with their traceback.

    Raises
    ------
    ConfigError
        A value has no meaning.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    max_rows: int = 10_000
    max_body: int = 16_000_000
    timeout: float = 30.0
    grace: float = 10.0
    device: Device | None = None
    threads: int | None = None
    debug: bool = False

    def __post_init__(self) -> None:
        for flag, value in (("--max-rows", self.max_rows), ("--max-body", self.max_body)):
            if value < 1:
                raise ConfigError(f"{flag} {value}: it must be 1 or more")
        if not self.timeout > 0:
            raise ConfigError(f"--timeout {self.timeout}: it must be above 0")
        if not self.grace >= 0:
            raise ConfigError(f"--grace {self.grace}: it must be 0 or more")
        if not 0 <= self.port <= 65_535:
            raise ConfigError(f"--port {self.port}: it must be 0 to 65535")
