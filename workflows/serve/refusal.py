"""Why a request is not answered with scores."""

from __future__ import annotations


class Refusal(Exception):
    """An HTTP status and a message in one line; ``close`` where the connection is of no further use."""

    def __init__(self, status: int, message: str, *, close: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.close = close
