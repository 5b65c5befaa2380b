"""A TCP proxy on the loopback that cuts and freezes the connections it forwards."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class Proxy:
    """Forwards TCP to `port`; can cut connections, refuse new ones, or hold everything back."""

    def __init__(self, port: int) -> None:
        self.port = port
        """Where new connections go."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self._to_workers: list[asyncio.StreamWriter] = []
        self._to_router: list[asyncio.StreamWriter] = []
        self.is_refusing = False
        self.num_connections = 0

    async def __aenter__(self) -> int:
        self._server = await asyncio.start_server(self._forward, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def __aexit__(self, *exc: object) -> None:
        self.cut()
        self._server.close()
        await self._server.wait_closed()
        await asyncio.gather(*self._tasks)

    def cut(self) -> None:
        for writer in (*self._to_workers, *self._to_router):
            writer.transport.abort()
        self._to_workers.clear()
        self._to_router.clear()
        self._flows.set()

    def cut_unnoticed(self) -> None:
        """Cut the workers off; to the router everything looks as before."""
        for writer in self._to_workers:
            writer.transport.abort()
        self._to_workers.clear()

    def freeze(self) -> None:
        self._flows.clear()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        if self.is_refusing:
            writer.transport.abort()
            return
        self.num_connections += 1
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self.port)
        except ConnectionError:
            writer.transport.abort()
            return
        self._to_workers.append(writer)
        self._to_router.append(back)
        await asyncio.gather(self._copy(reader, back), self._copy(there, writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
            writer.close()
