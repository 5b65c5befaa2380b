"""An HTTP server with tight limits in the test's loop, and clients that write bytes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import cast

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from baton_router.http import bodies
from baton_router.http.connections.bounded_protocol import BoundedProtocol
from baton_router.http.connections.server import HttpServer
from baton_router.process.http_settings import ConnectionLimits
from baton_router.streams.memory import BodyMemory, BodyReservation

QUICK = ConnectionLimits(
    max_connections=8, max_header_bytes=4096, header_timeout_s=0.3, idle_timeout_s=3.0, stall_timeout_s=1.0
)
GET = b"GET / HTTP/1.1\r\nHost: a\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
BODY = b"b" * 2**18
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers GET at once, and POST when it has the body."""
    if scope["method"] == "POST":
        await bodies.read_body(receive, Headers(scope=scope), 2**20, BodyReservation(BodyMemory()))
    headers = [(b"content-length", b"%d" % len(BODY))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": BODY})


class Server(HttpServer):
    """An HTTP server; clients reach it over TLS where they are given whom to trust."""

    def __init__(self, trusted: ssl.SSLContext | None) -> None:
        super().__init__()
        self.trusted = trusted

    @property
    def connections(self) -> list[BoundedProtocol]:
        assert self._server is not None
        return list(cast("set[BoundedProtocol]", self._server.server_state.connections))

    @property
    def num_connections(self) -> int:
        return len(self.connections)

    @property
    def num_calls(self) -> int:
        assert self._server is not None
        return len(self._server.server_state.tasks)

    async def until_empty(self) -> None:
        async with asyncio.timeout(30):
            while self.num_connections or self.num_calls:  # noqa: ASYNC110 (nothing tells of it)
                await asyncio.sleep(0.01)


@asynccontextmanager
async def serving(
    served: ASGIApp = app,
    limits: ConnectionLimits = QUICK,
    tls: ssl.SSLContext | None = None,
    trusted: ssl.SSLContext | None = None,
) -> AsyncIterator[Server]:
    server = Server(trusted)
    server.bind("127.0.0.1", 0)
    await server.start(served, root_path="", limits=limits, tls=tls)
    try:
        yield server
        async with connected(server) as (reader, writer):  # it still serves
            writer.write(GET + b"\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    finally:
        await server.stop(0)


@asynccontextmanager
async def connected(server: Server, *, is_raw: bool = False) -> AsyncIterator[Streams]:
    """A connection to the server; a raw one leaves out TLS."""
    tls = None if is_raw else server.trusted
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=tls)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def rest_of(reader: asyncio.StreamReader) -> bytes:
    """All that comes until the server hangs up."""
    parts: list[bytes] = []
    with suppress(ConnectionError):
        while part := await reader.read(65_536):
            parts.append(part)
    return b"".join(parts)
