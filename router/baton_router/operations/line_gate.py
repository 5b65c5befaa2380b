"""Lets the lines of batches begin, in the order in which they come, at the pace that other requests leave."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from baton_router.core.batches.line_pace import LinePace, RequestLoad


class LineGate:
    """The gate of one router, on its loop.

    Args:
        load: returns the open requests; None while no prompt can be served.
    """

    def __init__(self, load: Callable[[], RequestLoad | None]) -> None:
        self._load = load
        self._pace = LinePace()
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def line(self) -> AsyncIterator[None]:
        """Wait until a line may begin; it is over when the block is left."""
        turn: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(turn)
        self.note()
        try:
            await turn
            yield
        finally:
            if turn in self._waiting:
                self._waiting.remove(turn)
            elif not turn.cancelled():
                self._pace.num_lines -= 1
            self.note()

    def note(self) -> None:
        """Look at the requests again; called after each event of the router."""
        if not self._waiting and not self._pace.num_lines:
            return
        now, load = self._loop.time(), self._load()
        if load is not None:
            self._pace.note(now, load)
            while self._waiting and self._pace.may_begin(now, load):
                turn = self._waiting.popleft()
                if not turn.cancelled():
                    self._pace.num_lines += 1
                    turn.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting and (quiet_s := self._pace.quiet_at()) > now:
            self._timer = self._loop.call_at(quiet_s, self.note)
