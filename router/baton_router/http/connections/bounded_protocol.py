"""One HTTP/1.1 connection: uvicorn's, with bounds on what a slow, idle or hostile client may hold.

uvicorn itself bounds bodies by not reading on; it waits for headers forever and keeps whatever they hold. The
body's own deadline and size are those of `bodies`.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Final

import httptools
import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from baton_router.http.bodies import drop_body
from baton_router.http.connections.half_closed import HalfClosed
from baton_router.http.connections.open_connections import OpenConnections, Stage
from baton_router.http.connections.transports import abort, num_unsent
from baton_router.http.errors import HttpError, failure_of
from baton_router.process.http_settings import ConnectionLimits

_UPGRADE: Final = b"upgrade"
_HOST: Final = b"host"
MAX_PIPELINED: Final = 64
"""Requests that may wait behind one that is being handled."""
_HEADER_OVERHEAD_BYTES: Final = 32
"""Bytes that a header counts besides its text, so that many empty ones count too."""


class RequestParser(httptools.HttpRequestParser):
    """A server may ignore `Upgrade` (RFC 9110, 7.8), as Java's HttpClient expects of one without HTTP/2.

    httptools takes all that follows such a request's headers for the other protocol, its body too. So this
    parser shows the headers to its callbacks, then reads them once more without `Upgrade` and with the rest
    behind: the body goes by its `Content-Length` or `Transfer-Encoding`, and never for another request.

    Args:
        protocol: the callbacks. It skips the ends of headers and message while `should_upgrade()`.
    """

    def __init__(self, protocol: Any) -> None:
        self._protocol = protocol
        self._begin()

    def feed_data(self, data: Any) -> None:
        """Parse `data`, calling back.

        Raises:
            httptools.HttpParserError: it is no HTTP, or asks for a tunnel (CONNECT).
        """
        while data:
            try:
                super().feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                if self.get_method() == b"CONNECT":
                    raise httptools.HttpParserInvalidMethodError("CONNECT") from None
                data = self._head_without_upgrade() + data[upgrade.args[0] :]
                self._begin()  # else it drops all that follows a request that closes, as this may be
            else:
                return

    def _begin(self) -> None:
        """Expect the first request of a connection."""
        super().__init__(self._protocol)
        # More may follow a request that closes: it is not handled, and its bytes are no error.
        self.set_dangerous_leniencies(lenient_data_after_close=True)

    def _head_without_upgrade(self) -> bytes:
        lines = [b"%b %b HTTP/%b" % (self.get_method(), self._protocol.url, self.get_http_version().encode())]
        lines += [b"%b: %b" % header for header in self._protocol.headers if header[0] != _UPGRADE]
        return b"\r\n".join((*lines, b"", b""))


class _BoundError(Exception):
    """Ends the parsing; `send_400_response` refuses the request."""


class BoundedProtocol(HttpToolsProtocol):
    """Made by the acceptor for each connection, and added to `open_connections` by it; on its loop."""

    def __init__(
        self, limits: ConnectionLimits, open_connections: OpenConnections, **of_uvicorn: Any
    ) -> None:
        super().__init__(**of_uvicorn)
        self.parser = RequestParser(self)
        self._limits = limits
        self._open_connections = open_connections
        self._half_closed: HalfClosed | None = None
        self._abandon: Callable[[], object] = lambda: None
        self._answered: RequestResponseCycle | None = None
        """The request that is being handled, which others may follow already."""
        self._num_header_bytes = 0
        """Bytes of the line, headers and trailers of the request that is being read."""
        self._num_raw_bytes = 0
        """Bytes that have come since the parser last recognised something: one header, or no HTTP at all."""
        self._header_timer: asyncio.TimerHandle | None = None
        self._has_wrong_host = False
        """True for a request that proxies in front may take for another host's (RFC 9112, 3.2)."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        sock: socket.socket | None = transport.get_extra_info("socket")
        if sock is not None and sock.family is not socket.AF_UNIX:
            # The kernel notices who takes nothing, also of what waits in its own buffers.
            stall_ms = int(1e3 * self._limits.stall_timeout_s)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, stall_ms)
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._half_closed is not None:
            self._half_closed.stop()
        self._open_connections.remove(self)
        self.pipeline.clear()
        super().connection_lost(exc)
        if self._answered is not None and not self._answered.response_complete:
            self._answered.disconnected = True  # uvicorn tells the last request alone
            self._answered.message_event.set()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        if cycle.scope["http_version"] != "1.1":
            app = _until_close(cycle, app)
        if cycle.waiting_for_100_continue:
            app = _closing_unasked(cycle, app)
        super()._start_asgi_task(cycle, app)

    @property
    def has_unsent(self) -> bool:
        """True while a part of its last response waits for the client."""
        return self.transport is not None and num_unsent(self.transport) > 0

    def evicted_by(self, abandon: Callable[[], object]) -> None:
        """Note how the connection ends while it has no transport yet."""
        self._abandon = abandon

    def evict(self) -> None:
        if self.transport is None:
            self._abandon()
        else:
            abort(self.transport)

    def end_with_answer(self) -> None:
        """Close the connection once what it has begun to ask is answered; now where it asks nothing."""
        if not self._is_idle or self._header_timer is None:  # otherwise its next answer closes it
            self.shutdown()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection for the replies to a client that sends no more.

        TLS has no such half-closed connections in asyncio. A body without its end ends the connection.
        """
        if self._is_idle or self.cycle.more_body or self.scheme == "https":
            return False
        self.cycle.keep_alive = False
        self._watch()
        return True

    def data_received(self, data: bytes) -> None:
        self._open_connections.move(self, Stage.READING if self._is_idle else Stage.ANSWERING)
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
        if self.parser.should_upgrade():
            return  # they come again
        if len(self.pipeline) >= MAX_PIPELINED:
            raise _BoundError
        num_hosts = sum(name == _HOST for name, _ in self.headers)
        if num_hosts > 1 or (not num_hosts and self.parser.get_http_version() == "1.1"):
            self._has_wrong_host = True
            raise _BoundError
        self._stop_timer()
        self._num_raw_bytes = 0
        self._open_connections.move(self, Stage.ANSWERING)
        super().on_headers_complete()
        if self.pipeline:
            self._watch()  # uvicorn reads on only when the request before it is answered, or asks for more

    def on_body(self, body: bytes) -> None:
        self._num_raw_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._num_raw_bytes = 0
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._is_idle:
            self._open_connections.move(self, Stage.IDLE)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, or more than may be; the connection ends."""
        error = HttpError(400, "invalid_http", msg)
        if self._has_wrong_host:
            error = HttpError(400, "invalid_http", "host is given never or twice; allowed: one header Host")
        if self._num_header_bytes > (most := self._limits.max_header_bytes):
            text = f"the headers are too large; allowed: at most {most} bytes"
            error = HttpError(431, "headers_too_large", text)
        body = msgspec.json.encode(failure_of(error).body)
        head = (STATUS_LINE[error.status], b"content-type: application/json\r\nconnection: close\r\n")
        length = b"content-length: %d\r\n\r\n" % len(body)
        self.transport.write(b"".join((*head, length, body)))
        self.transport.close()

    @property
    def _is_idle(self) -> bool:
        """True while no request of this connection is being handled."""
        return self.cycle is None or self.cycle.response_complete

    def _watch(self) -> None:
        """Notice a client that is gone though the connection is not read."""
        if self._half_closed is None:
            self._half_closed = HalfClosed(self.transport, self._can_send_interim)

    def _can_send_interim(self) -> bool:
        """True if the client knows interim responses, and the response that comes next has not begun."""
        assert self._answered is not None, "a request is being handled"
        answered = self._answered
        return answered.scope["http_version"] == "1.1" and not answered.response_started

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


def _until_close(cycle: RequestResponseCycle, app: ASGIApp) -> ASGIApp:
    """Return `app` for one request of HTTP/1.0, which knows no chunks: its `cycle` sends none.

    A body of unknown length ends with the connection.
    Source: RFC 9112, 6.1 and 6.3.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        has_length = True

        async def send_plain(message: Message) -> None:
            nonlocal has_length
            if message["type"] == "http.response.start":
                has_length = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
                if not has_length:
                    cycle.chunked_encoding = cycle.keep_alive = False
            elif not has_length:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_plain)

    return answer


def _closing_unasked(cycle: RequestResponseCycle, app: ASGIApp) -> ASGIApp:
    """Return `app` for one request whose client waits to be asked for the body (`Expect: 100-continue`).

    Where the final response comes first, nobody can tell whether the body still follows: the connection ends,
    after a while in which what comes is dropped, so that a client that has not waited reads the response.
    Source: RFC 9110, 10.1.1.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_final(message: Message) -> None:
            if cycle.waiting_for_100_continue and cycle.more_body:
                cycle.keep_alive = False
            is_last = message["type"] == "http.response.body" and not message.get("more_body", False)
            if is_last and not cycle.keep_alive and cycle.more_body:
                await send({**message, "more_body": True})
                await drop_body(receive)
                message = {"type": "http.response.body"}
            await send(message)

        await app(scope, receive, send_final)

    return answer
