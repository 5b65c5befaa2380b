"""Decides when a line of a batch may begin, so that other requests hardly wait for lines."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

QUIET_S: Final = 1.0
"""Time without other requests after which lines have the workers for themselves."""
DEFAULT_LINES_BESIDE: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLoad:
    """The open requests of a router; a line of a batch is one for each of its prompts."""

    num_others: int
    """Requests that are of no line."""
    num_waiting: int
    """Requests that wait for a worker, those of lines among them."""
    num_prefilling: int
    """Requests whose prompt is being computed, those of lines among them."""
    num_workers: int
    """Workers that compute prompts."""


class LinePace:
    """Counts the lines that have begun, and remembers when there was another request.

    Args:
        lines_beside: lines that run on average beside other requests, for each worker that computes prompts.
    """

    def __init__(self, lines_beside: float = DEFAULT_LINES_BESIDE) -> None:
        self.num_lines = 0
        self._lines_beside = lines_beside
        self._busy_s = -math.inf
        self._next_s = -math.inf

    def note(self, now: float, load: RequestLoad) -> None:
        """Remember whether there are other requests."""
        if load.num_others:
            self._busy_s = now

    def may_begin(self, now: float, load: RequestLoad) -> bool:
        """Return whether one more line may begin.

        None begins while a request waits for a worker. Beside others there are few, which do not begin while
        all workers compute prompts.
        """
        if load.num_waiting:
            return False
        if now >= self._busy_s + QUIET_S:
            return True
        most = self._lines_beside * load.num_workers
        if not most or load.num_prefilling >= load.num_workers:
            return False
        if most < 1:
            return not self.num_lines and now >= self._next_s
        return self.num_lines < math.floor(most)

    def end(self, now: float, took_s: float, load: RequestLoad) -> None:
        """Take note that a line is over; where less than one runs on average, a pause comes behind it."""
        self.num_lines -= 1
        most = self._lines_beside * load.num_workers
        if most < 1:
            self._next_s = now + took_s * (1 / most - 1) if most else now

    def next_s(self, now: float) -> float:
        """Return the time at which to look again, if nothing happens before."""
        times = (self._busy_s + QUIET_S, self._next_s)
        return min((time_s for time_s in times if time_s > now), default=math.inf)
