"""HTTP/1.1 connections that cannot be held open by doing nothing, over those of uvicorn."""

from __future__ import annotations

import asyncio
import json
from typing import ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class GuardedProtocol(H11Protocol):
    """A connection with deadlines for the head of a request and for a client that does not read its answer.

    The body of a request has its own deadline, where it is read. A client that closes its side after its
    request still gets the answer.
    """

    seconds: ClassVar[float] = 30.0

    _head_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    @classmethod
    def within(cls, seconds: float) -> type[GuardedProtocol]:
        """Return the protocol with that deadline."""
        return type("GuardedProtocol", (cls,), {"seconds": seconds})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        """Take what came; a head that is whole stops its clock."""
        super().data_received(data)
        self._watch_head()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        super().on_response_complete()
        self._watch_head()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Keep the connection of a client that has sent its request and now waits for the answer."""
        if self.cycle is None or self.cycle.response_complete or self.conn.their_state is h11.SEND_BODY:
            return None
        self.cycle.keep_alive = False
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clocks."""
        for timer in (self._head_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Begin to watch whether the client reads."""
        super().pause_writing()
        self._watch_reading()

    def resume_writing(self) -> None:
        """Go on."""
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, if no answer has begun, and close."""
        document = json.dumps({"error": msg[:1].lower() + msg[1:].rstrip(".")}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(document)).encode()),
            (b"connection", b"close"),
        ]
        head = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
        try:
            for event in (head, h11.Data(data=document), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:  # in the midst of another answer
            pass
        self.transport.close()

    def _watch_reading(self, unsent: int | None = None) -> None:
        left = self.transport.get_write_buffer_size()
        if unsent is not None and left >= unsent:
            self.transport.abort()
            return
        self._write_timer = self.loop.call_later(self.seconds, self._watch_reading, left)

    def _watch_head(self) -> None:
        waiting = self.conn.their_state is h11.IDLE and not self.transport.is_closing()
        if waiting and self._head_timer is None:
            self._head_timer = self.loop.call_later(self.seconds, self._head_is_late)
        elif not waiting and self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self.transport.get_write_buffer_size():  # the last answer is still being read
            self._watch_head()
        else:
            self.transport.abort()
