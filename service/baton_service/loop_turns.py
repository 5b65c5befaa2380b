"""The turns of an event loop: how long each holds up everything else that the loop does.

A turn is what a loop does between two waits for events: all callbacks that are due. A router counts those of
its loop, on the loop's thread.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from selectors import SelectorKey
from typing import Final

from baton_core.distribution import Distribution

_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_READ_EVERY_S: Final = 0.005
"""Time between two readings of the thread's CPU time, a system call that can cost as much as a token does."""


class LoopTurns:
    """Counts the turns of the loop that `make_loop` makes."""

    def __init__(self) -> None:
        self.lag_s = Distribution(_BOUNDS)
        """Wall time of each turn: the longest that an event has waited for the loop."""
        self.cpu_s = Distribution(_BOUNDS)
        """CPU time of the loop's thread in each turn, whatever other threads and processes do.

        Of a turn below 5 ms it is the wall time; of others it may be up to 5 ms too much.
        """

    def make_loop(self) -> asyncio.AbstractEventLoop:
        """Return a new loop whose turns are counted."""
        return asyncio.SelectorEventLoop(_CountingSelector(self))


class _CountingSelector(selectors.DefaultSelector):
    """Takes the time whenever its loop begins and ends to wait."""

    def __init__(self, turns: LoopTurns) -> None:
        super().__init__()
        self._turns = turns
        self._began_s: float | None = None
        self._read_s = 0.0
        """Time of the last reading of the CPU time, and what it was."""
        self._cpu_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        if self._began_s is not None:
            lag_s = time.monotonic() - self._began_s
            is_long = lag_s > _READ_EVERY_S
            self._turns.lag_s.add(lag_s)
            self._turns.cpu_s.add(min(lag_s, time.thread_time() - self._cpu_s) if is_long else lag_s)
        ready = super().select(timeout)
        self._began_s = time.monotonic()
        if self._began_s - self._read_s > _READ_EVERY_S:
            self._read_s, self._cpu_s = self._began_s, time.thread_time()
        return ready
