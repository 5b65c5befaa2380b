"""How often a request was taken from its workers, and whether it may be again."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from baton_core.errors import ErrorCode

MAX_GIVEN_TOKENS: Final = 330_000
"""Prompt and outputs that fit into one message; what has more cannot be moved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveLimits:
    max_moves: int = 16
    max_fruitless_moves: int = 3
    """In a row, without a new token: whatever kills its workers stops at so many."""
    same_cause_s: float = 2.0
    """Moves within this time count as one: a router that was cut off loses all its workers at once."""
    wait_s: float = 15.0
    """How long it looks for another worker while there is none."""


class Moves:
    """Of one request."""

    def __init__(self, limits: MoveLimits) -> None:
        self._limits = limits
        self.num_moves = 0
        self._num_causes = 0
        self._num_fruitless = 0
        self._cause_s = -math.inf
        self._num_tokens = -1
        self._since_s: float | None = None
        self.why = ""
        """Of the last move, to begin a message with; empty without one."""
        self.code = ErrorCode.OVERLOADED
        """Of the error if no other worker takes it on."""

    @property
    def wait_until_s(self) -> float:
        """When it has waited long enough for another worker."""
        assert self._since_s is not None, "it waits"
        return self._since_s + self._limits.wait_s

    def extend(self, now: float) -> None:
        """There are workers, only without room: if it waits, the wait counts from here on."""
        if self._since_s is not None:
            self._since_s = now

    def wait(self, now: float) -> None:
        """Without a move it waits from here on."""
        if self._since_s is None:
            self._since_s = now

    def note(
        self, now: float, code: ErrorCode, why: str, num_tokens: int, num_prompt_tokens: int
    ) -> str | None:
        """Count a move of a request that has generated `num_tokens`; returns why it may not be, if so."""
        limits = self._limits
        self.why, self.code = f"{why}; ", code
        if (num_given := num_prompt_tokens + num_tokens) > MAX_GIVEN_TOKENS:
            return f"it has {num_given} tokens; at most {MAX_GIVEN_TOKENS} can be moved"
        if num_tokens > self._num_tokens:
            self._num_tokens, self._num_fruitless = num_tokens, 0
            self._since_s, self._cause_s = now, -math.inf
        if now - self._cause_s >= limits.same_cause_s:
            if self._num_fruitless >= limits.max_fruitless_moves:
                return f"moved {self._num_fruitless} times without a new token, the maximum"
            if self._num_causes >= limits.max_moves:
                return f"moved {self._num_causes} times, the maximum"
            self._cause_s = now
            self._num_causes += 1
            self._num_fruitless += 1
        self.num_moves += 1
        return None
