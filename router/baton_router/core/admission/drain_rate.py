"""The rate at which a queue drains, from which waits are predicted."""

from __future__ import annotations

import math
from typing import Final

_MEMORY_S: Final = 10.0
"""Time constant of the average: older observations count for less than a third."""
_MIN_BUSY_S: Final = 0.5
"""Busy time before which the rate is unknown."""


class DrainRate:
    """Tokens of requests that leave a queue per second, over the times in which it was not empty."""

    def __init__(self) -> None:
        self._num_tokens = 0.0
        self._busy_s = 0.0
        self._noted_s = 0.0
        self._is_busy = False

    def note(self, now: float, num_tokens: float = 0.0, *, is_busy: bool) -> None:
        """Count tokens that have left; `is_busy` is True if requests still wait."""
        elapsed_s = max(0.0, now - self._noted_s)
        if self._is_busy:
            fade = math.exp(-elapsed_s / _MEMORY_S)
            self._busy_s = self._busy_s * fade + _MEMORY_S * (1 - fade)
            self._num_tokens = self._num_tokens * fade + num_tokens
        self._noted_s, self._is_busy = now, is_busy

    def wait_s(self, num_tokens: float) -> float | None:
        """Return the time in which this number of tokens leaves; None where it is not known."""
        if self._busy_s < _MIN_BUSY_S or self._num_tokens <= 0:
            return None
        return num_tokens * self._busy_s / self._num_tokens
