"""Operations of which one runs at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from baton_core.errors import ErrorCode, RequestError

T = TypeVar("T")


class Turns:
    """Runs one operation after the other. Each continues if its caller goes away.

    Args:
        awaited: the name of the operations, as a late one's error has it.
    """

    def __init__(self, awaited: str) -> None:
        self._awaited = awaited
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self, name: str, timeout_s: float, work: Callable[[], Awaitable[T]]) -> T:
        """Do `work` when the earlier ones have ended; returns its result.

        Raises:
            RequestError: DEADLINE_EXCEEDED, they have not ended within `timeout_s`.
        """
        task = asyncio.create_task(self._in_turn(name, timeout_s, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    def close(self) -> None:
        """Cancel what runs and what waits."""
        for task in self._tasks:
            task.cancel()

    async def _in_turn(self, name: str, timeout_s: float, work: Callable[[], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(timeout_s):
                await self._lock.acquire()
        except TimeoutError:
            text = f"{name} waited {timeout_s:g} s for an earlier {self._awaited} to end"
            raise RequestError(ErrorCode.DEADLINE_EXCEEDED, text) from None
        try:
            return await work()
        finally:
            self._lock.release()
