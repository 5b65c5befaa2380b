"""A server of HTTP that answers each request with the bytes it was told to, and can die in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager

from baton_bench.http_client import HttpClient, Origin

Script = Callable[[int, asyncio.StreamWriter], Coroutine[None, None, None]]
"""Answers the request of this number, from 0."""
EVENTS = b'data: {"choices": [{"text": "a"}]}\n\ndata: [DONE]\n\n'


class ScriptedServer:
    """The requests that it has seen."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.requests: list[bytes] = []
        self.origin: Origin | None = None
        """The server's address, while it serves."""
        self.num_connections = 0
        self.tasks: list[asyncio.Task[None] | None] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        self.tasks.append(asyncio.current_task())
        try:
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                await self._script(len(self.requests) - 1, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving(script: Script) -> AsyncIterator[tuple[ScriptedServer, HttpClient]]:
    """A server on a port of its own, and a client of it."""
    scripted = ScriptedServer(script)
    server = await asyncio.start_server(scripted.serve, "127.0.0.1", 0)
    scripted.origin = Origin(host="127.0.0.1", port=server.sockets[0].getsockname()[1])
    client = HttpClient(scripted.origin, {"Authorization": "Bearer k"})
    try:
        yield scripted, client
    finally:
        await client.close()
        server.close()
        await asyncio.gather(*filter(None, scripted.tasks))


def answer(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = (f"HTTP/1.1 {status}", *headers, "", "")
    return "\r\n".join(lines).encode() + body


def sized(body: bytes, status: str = "200 OK") -> bytes:
    return answer(body, f"Content-Length: {len(body)}", status=status)


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)
