"""One HTTP/1.1 connection: uvicorn's, with bounds on what a client that is slow, idle or hostile may hold.

uvicorn itself bounds bodies, by not reading on; it waits for headers forever and keeps whatever they hold.
The body's own deadline and size are those of `bodies`.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from baton_router.http.connection_limits import ConnectionLimits

MAX_PIPELINED: Final = 64
"""Requests that may wait behind one that is being answered."""
_HEADER_OVERHEAD_BYTES: Final = 32
"""Of one header besides its text, so that many empty ones count too."""


class _BoundError(Exception):
    """Ends the parsing; the client is told by `send_400_response`."""


class BoundedProtocol(HttpToolsProtocol):
    """Made by uvicorn for each connection; on its loop."""

    def __init__(self, limits: ConnectionLimits, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self._limits = limits
        self._num_header_bytes = 0
        """Of the request that is being read: line, headers and trailers."""
        self._num_raw_bytes = 0
        """That came since the parser has last made something of them: of one header, or of no HTTP at all."""
        self._header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._limits.max_connections:
            transport.abort()
            return
        sock: socket.socket | None = transport.get_extra_info("socket")
        if sock is not None:
            # The kernel notices who takes nothing, also of what waits in its own buffers.
            stall_ms = int(1e3 * self._limits.stall_timeout_s)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, stall_ms)
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._num_raw_bytes += len(data)
        super().data_received(data)
        if self._num_raw_bytes > self._limits.max_header_bytes and not self.transport.is_closing():
            self._num_header_bytes += self._num_raw_bytes
            self.send_400_response("")
        if self._is_idle and self._header_timer is None:
            self._await_headers()

    def on_message_begin(self) -> None:
        self._num_header_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + _HEADER_OVERHEAD_BYTES)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= MAX_PIPELINED:
            raise _BoundError
        self._stop_timer()
        self._num_raw_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._num_raw_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._num_raw_bytes = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, or more than may be; the connection ends."""
        if self._num_header_bytes <= self._limits.max_header_bytes:
            super().send_400_response(msg)
            return
        text = f"the headers are too large; allowed: at most {self._limits.max_header_bytes} bytes\n".encode()
        head = (STATUS_LINE[431], b"content-type: text/plain\r\nconnection: close\r\n")
        length = b"content-length: %d\r\n\r\n" % len(text)
        self.transport.write(b"".join((*head, length, text)))
        self.transport.close()

    @property
    def _is_idle(self) -> bool:
        """Whether no request of this connection is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _count(self, num_bytes: int) -> None:
        self._num_header_bytes += num_bytes
        self._num_raw_bytes = 0
        if self._num_header_bytes > self._limits.max_header_bytes:
            raise _BoundError

    def _await_headers(self) -> None:
        self._header_timer = self.loop.call_later(self._limits.header_timeout_s, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None
