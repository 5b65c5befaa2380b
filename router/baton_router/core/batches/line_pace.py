"""Decides when a line of a batch may begin, so that other requests hardly wait for lines."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

QUIET_S: Final = 1.0
"""Time without other requests after which lines have the workers for themselves."""
MAX_BESIDE: Final = 1
"""Lines at a time beside other requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLoad:
    """The open requests of a router, lines among them."""

    num_requests: int
    num_waiting: int
    """Requests that wait for a worker."""
    num_prefilling: int
    """Requests whose prompt is being computed."""


class LinePace:
    """Counts the lines that have begun, and remembers when there was another request."""

    def __init__(self) -> None:
        self.num_lines = 0
        self._busy_s = -math.inf

    def note(self, now: float, load: RequestLoad) -> None:
        """Remember whether there are other requests."""
        if load.num_requests > self.num_lines:
            self._busy_s = now

    def may_begin(self, now: float, load: RequestLoad) -> bool:
        """Return whether one more line may begin.

        None begins while a request waits for a worker. Beside others there is one at a time, which does not
        begin while a prompt is being computed.
        """
        if load.num_waiting:
            return False
        if now >= self._busy_s + QUIET_S:
            return True
        return self.num_lines < MAX_BESIDE and not load.num_prefilling

    def quiet_at(self) -> float:
        """Return the time from which lines have the workers for themselves, if no other request comes."""
        return self._busy_s + QUIET_S
