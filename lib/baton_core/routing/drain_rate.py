"""How fast a line moves, so that it can be said how long a wait will be."""

from __future__ import annotations

import math
from typing import Final

_MEMORY_S: Final = 10.0
"""What was longer ago than this counts for less than a third."""
_MIN_BUSY_S: Final = 0.5
"""Of waiting, before which a rate says nothing."""


class DrainRate:
    """Tokens of requests that leave a line per second, over the times in which somebody waited."""

    def __init__(self) -> None:
        self._num_tokens = 0.0
        self._busy_s = 0.0
        self._noted_s = 0.0
        self._is_busy = False

    def note(self, now: float, num_tokens: float = 0.0, *, is_busy: bool) -> None:
        """So many tokens have left; `is_busy` says whether somebody waits from now on."""
        elapsed_s = max(0.0, now - self._noted_s)
        if self._is_busy:
            fade = math.exp(-elapsed_s / _MEMORY_S)
            self._busy_s = self._busy_s * fade + _MEMORY_S * (1 - fade)
            self._num_tokens = self._num_tokens * fade + num_tokens
        self._noted_s, self._is_busy = now, is_busy

    def wait_s(self, num_tokens: float) -> float | None:
        """How long so many tokens take to leave; None where that is not known."""
        if self._busy_s < _MIN_BUSY_S or self._num_tokens <= 0:
            return None
        return num_tokens * self._busy_s / self._num_tokens
