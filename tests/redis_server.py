"""A real redis-server on the loopback that a test may kill, restart and flush."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from baton_service.redis.redis_settings import RedisSettings
from bench.processes import free_port

needs_redis = pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed")


class RedisServer:
    """One server that keeps nothing on disk.

    Args:
        options: of its command line, after the port's.
        query: parameters of the URL.
    """

    def __init__(
        self,
        folder: Path,
        *,
        options: Sequence[str] = (),
        scheme: str = "redis",
        login: str = "",
        query: str = "",
    ) -> None:
        self.port = free_port()
        self.url = f"{scheme}://{login}127.0.0.1:{self.port}/0{query}"
        ports = (
            ("--port", str(self.port)) if scheme == "redis" else ("--port", "0", "--tls-port", str(self.port))
        )
        fixed = ("--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(folder))
        self._command = ("redis-server", *ports, *fixed, *options)
        self._process: subprocess.Popen[bytes] | None = None

    def settings(self, **changes: Any) -> RedisSettings:
        return RedisSettings(**{"url": self.url, "namespace": "test", **changes})

    async def start(self) -> None:
        """Start it, empty, and wait until it answers."""
        self._launch()
        async with asyncio.timeout(5):
            while not await self._answers():  # noqa: ASYNC110 (a process that listens raises no event)
                await asyncio.sleep(0.01)

    def kill(self) -> None:
        """Kill it at once, if it runs; everything that it had is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, such as one to stop or to continue."""
        assert self._process is not None, "it runs"
        self._process.send_signal(number)

    async def ask(self, *words: str | bytes | int) -> Any:
        """Run one command."""
        async with Redis.from_url(self.url, retry=Retry(NoBackoff(), 0), protocol=2) as client:
            return await client.execute_command(*words)  # type: ignore[no-untyped-call]

    def _launch(self) -> None:
        nowhere = subprocess.DEVNULL
        self._process = subprocess.Popen(self._command, stdout=nowhere, stderr=nowhere)

    async def _answers(self) -> bool:
        with suppress(RedisError, OSError):
            return bool(await self.ask("PING"))
        return False


@asynccontextmanager
async def redis_server(folder: Path, **options: Any) -> AsyncIterator[RedisServer]:
    server = RedisServer(folder, **options)
    try:
        await server.start()
        yield server
    finally:
        server.kill()
