"""An attack, its target, and its outcome."""

from __future__ import annotations

import asyncio
import io
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import aiohttp
import grpc

from baton_service.router_access import RouterAccess

WITHIN_S: Final = 180.0
"""An attack ends after so long, whatever it still waits for."""
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_JSON: Final = {"content-type": "application/json"}
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
_GRPC_OPTIONS: Final = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))


@dataclass(frozen=True, slots=True)
class Outcome:
    """Ends of the calls of an attack."""

    ends: Counter[str] = field(default_factory=Counter)
    """HTTP and gRPC statuses, and what happened to connections, by how often."""
    wrong: list[str] = field(default_factory=list)
    """Answers that no server may give to any client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A router, as an attacker sees it."""

    http_address: str
    grpc_address: str
    key: str
    rng: Random
    outcome: Outcome = field(default_factory=Outcome)

    def end(self, how: object, times: int = 1) -> None:
        self.outcome.ends[str(how)] += times

    def wrong(self, what: str) -> None:
        self.outcome.wrong.append(what[:500])

    def request(self, path: str, content: bytes = b"", *headers: str) -> bytes:
        """A whole HTTP request with the key, as bytes."""
        lines = (
            *(f"{'POST' if content else 'GET'} {path} HTTP/1.1", f"Host: {self.http_address}"),
            *(f"Authorization: Bearer {self.key}", "Content-Type: application/json", *headers),
            *([f"Content-Length: {len(content)}"] if content else []),
        )
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + content

    @asynccontextmanager
    async def connected(self, address: str = "") -> AsyncIterator[Streams]:
        """A connection to HTTP, or to `address`, that is aborted in the end."""
        host, _, port = (address or self.http_address).rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def exchange(self, content: bytes, *, within_s: float, ends: bool = False) -> list[int]:
        """Send bytes, and the end if `ends`; return the statuses that come until the other end hangs up.

        Interim ones, such as 100 Continue, are left out.
        """
        received = bytearray()
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(within_s), self.connected() as (reader, writer):
                writer.write(content)
                with suppress(OSError):  # it hangs up before it has read everything
                    await writer.drain()
                    if ends:
                        writer.write_eof()
                while piece := await reader.read(2**16):
                    received += piece
        return [int(status) for status in _STATUS_LINE.findall(received) if not status.startswith(b"1")]

    @asynccontextmanager
    async def session(self) -> AsyncIterator[aiohttp.ClientSession]:
        """Aiohttp with the key; its connections are closed in the end."""
        timeout = aiohttp.ClientTimeout(total=WITHIN_S)
        connector, headers = aiohttp.TCPConnector(limit=0), {"authorization": f"Bearer {self.key}"}
        async with aiohttp.ClientSession(
            f"http://{self.http_address}", headers=headers, timeout=timeout, connector=connector
        ) as session:
            yield session

    async def post(self, session: aiohttp.ClientSession, path: str, body: dict[str, Any] | bytes) -> int:
        """Ask, count the status and return it, 0 where there is no answer; what else comes is thrown away."""
        try:
            async with session.post(path, data=_content(body), headers=_JSON) as answer:
                async for _ in answer.content.iter_any():
                    pass
                self.end(answer.status)
                return answer.status
        except (aiohttp.ClientError, TimeoutError) as error:
            self.end(type(error).__name__)
            return 0

    async def ask(
        self, session: aiohttp.ClientSession, path: str, body: dict[str, Any]
    ) -> tuple[int, dict[str, Any]]:
        """Ask, count the status and return it with the answer's fields; 0 where there is no answer."""
        try:
            async with session.post(path, data=_content(body), headers=_JSON) as answer:
                self.end(answer.status)
                return answer.status, await answer.json()
        except (aiohttp.ClientError, TimeoutError) as error:
            self.end(type(error).__name__)
            return 0, {}

    @asynccontextmanager
    async def channel(self, key: str | None = None) -> AsyncIterator[tuple[grpc.aio.Channel, Any]]:
        """A channel of its own connection, and the metadata that name `key`, or the target's."""
        access = RouterAccess(key=self.key if key is None else key)
        async with access.open_async_channel(self.grpc_address, _GRPC_OPTIONS) as channel:
            yield channel, access.metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """Something that a stranger or a tenant does to a router."""

    name: str
    what: str
    """One line for `--list`."""
    run: Callable[[Target], Awaitable[None]]
    has_key: bool

    async def attack(self, target: Target) -> Outcome:
        """Run against one router, for at most `WITHIN_S` seconds."""
        try:
            async with asyncio.timeout(WITHIN_S):
                await self.run(target)
        except* TimeoutError:
            target.end("out of time")
        except* (OSError, grpc.aio.AioRpcError) as failed:
            for error in failed.exceptions:
                target.end(type(error).__name__)
        return target.outcome


def _content(body: dict[str, Any] | bytes) -> io.BytesIO:
    return io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())


async def at_once(count: int, one: Callable[[int], Coroutine[Any, Any, None]]) -> None:
    """Do `one` for each number below `count`, all together."""
    async with asyncio.TaskGroup() as tasks:
        for number in range(count):
            tasks.create_task(one(number))
