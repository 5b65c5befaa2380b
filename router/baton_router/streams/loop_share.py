"""Turns of the router's loop for long work, which runs in pieces so that other callbacks run in between."""

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
