"""Turns of the router's loop: for long work, in pieces between other callbacks, and readers of streams."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

SLICE_S: Final = 0.01
"""Time of one turn of the loop that all long work may take together, but for the end of its last piece."""


class LoopShare:
    """Schedules the long work of all calls in order of request, on one loop."""

    def __init__(self, *, slice_s: float = SLICE_S) -> None:
        self._slice_s = slice_s
        self._spent_at_s: float | None = None
        """End of this turn's time; None while no work has used any of it."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_armed = False

    async def turn(self) -> None:
        """Wait until the loop has time for a piece of work; return at once while this turn has some."""
        loop = asyncio.get_running_loop()
        if self._waiting or (self._spent_at_s is not None and loop.time() >= self._spent_at_s):
            turn = loop.create_future()
            self._waiting.append(turn)
            await turn
        if self._spent_at_s is None:
            self._spent_at_s = loop.time() + self._slice_s
        if not self._is_armed:
            self._is_armed = True
            loop.call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        """Wake the next waiter, which runs in the loop's next turn, and schedule the turn after it."""
        self._spent_at_s = None
        while self._waiting:
            if not (turn := self._waiting.popleft()).done():
                turn.set_result(None)
                asyncio.get_running_loop().call_soon(self._begin_turn)
                return
        self._is_armed = False


READERS_PER_TURN: Final = 64


class StreamTurns:
    """The readers of all streams of a router, each woken once, in the order in which they have news.

    A bounded number is woken in each turn of the loop. Between two turns it reads what workers have sent. A
    router that is behind so reads more of it before a stream's turn comes, and the stream's tokens since its
    last turn go out together: in one event, by one call of the system. A router that keeps up wakes every
    reader at once.
    """

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
