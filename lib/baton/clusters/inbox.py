"""What one asynchronous caller is still to hear of its request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from baton.clusters.cluster import ClusterEvent

ABORTED: Final = "aborted"
"""In the place of an event: the request was ended from elsewhere."""
Letter = ClusterEvent | str


class Inbox:
    """Events in order. It holds no more than the request's own tokens: whoever fills it never waits.

    Made and used on the loop of the caller.
    """

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._letters: list[Letter] = []
        self._has_letters = asyncio.Event()
        self._is_closed = asyncio.Event()

    def put(self, letters: Iterable[Letter]) -> None:
        """Add what has come."""
        self._letters += letters
        self._has_letters.set()

    async def take(self) -> list[Letter]:
        """Wait until there is something; returns all of it."""
        await self._has_letters.wait()
        self._has_letters.clear()
        letters, self._letters = self._letters, []
        return letters

    def close(self) -> None:
        """Say that nobody reads it any more."""
        self._is_closed.set()

    async def wait_closed(self) -> None:
        await self._is_closed.wait()
