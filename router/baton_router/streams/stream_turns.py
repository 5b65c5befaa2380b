"""Wakes the readers of streams, a bounded number in each turn of the router's loop.

Between two turns the loop reads what workers have sent. A router that is behind so reads more of it before a
stream's turn comes, and the stream's tokens since its last turn go out together: in one event, by one call of
the system. A router that keeps up wakes every reader at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

READERS_PER_TURN: Final = 64


class StreamTurns:
    """The readers of all streams of a router, each woken once, in the order in which they have news."""

    def __init__(self, readers_per_turn: int = READERS_PER_TURN) -> None:
        self._readers_per_turn = readers_per_turn
        self._num_left = readers_per_turn
        """Readers that may still be woken in this turn."""
        self._waiting: deque[asyncio.Future[None]] = deque()

    def wake(self, reader: asyncio.Future[None]) -> None:
        """Wake a reader in this turn of the loop, or in the first one that has room."""
        if self._num_left == self._readers_per_turn:
            reader.get_loop().call_soon(self._begin_turn, reader.get_loop())
        if self._num_left > 0:
            self._num_left -= 1
            _wake(reader)
        else:
            self._waiting.append(reader)

    def _begin_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        num_woken = min(len(self._waiting), self._readers_per_turn)
        self._num_left = self._readers_per_turn - num_woken
        for _ in range(num_woken):
            _wake(self._waiting.popleft())
        if num_woken:
            loop.call_soon(self._begin_turn, loop)


def _wake(reader: asyncio.Future[None]) -> None:
    if not reader.done():
        reader.set_result(None)
