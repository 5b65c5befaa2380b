"""Lets the requests of batches begin: only while a prompt can be served and no other one waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class LineGate:
    """The gate of one router, on its loop.

    Args:
        is_quiet: whether a request may begin now without keeping others from a worker.
    """

    def __init__(self, is_quiet: Callable[[], bool]) -> None:
        self._is_quiet = is_quiet
        self._is_open = asyncio.Event()

    def note(self) -> None:
        """Look at the requests again; called after each event of the router."""
        if self._is_quiet():
            self._is_open.set()
        else:
            self._is_open.clear()

    async def wait(self) -> None:
        """Wait until a request may begin."""
        self.note()
        await self._is_open.wait()
