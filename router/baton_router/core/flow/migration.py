"""Counts the migrations of a request from worker to worker, and limits them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from baton_core.errors import ErrorCode

MAX_MIGRATED_TOKENS: Final = 330_000
"""Prompt and output tokens that fit into one message; a longer request cannot migrate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationLimits:
    max_migrations: int = 16
    max_fruitless_migrations: int = 3
    """Maximum in a row without a new token, of workers that had begun with it: a request may kill them."""
    same_cause_s: float = 2.0
    """Migrations within this time count as one: a router that is cut off loses all its workers at once."""
    wait_s: float = 15.0
    """Longest wait for another worker while there is none."""


class Migrations:
    """The migrations of one request."""

    def __init__(self, limits: MigrationLimits) -> None:
        self._limits = limits
        self.num_migrations = 0
        self._num_causes = 0
        self._num_fruitless = 0
        self._cause_s = -math.inf
        self._num_tokens = -1
        self._returned_by: set[str] = set()
        """Workers that gave the request back."""
        self._since_s = math.inf
        """Begin of the wait for another worker; infinite while it does not wait for one."""
        self.why = ""
        """Cause of the last migration, as the beginning of a message; empty before the first one."""
        self.code = ErrorCode.OVERLOADED
        """Code of the error if no other worker takes the request."""

    @property
    def wait_until_s(self) -> float:
        """End of the wait for another worker; infinite while it does not wait for one."""
        return self._since_s + self._limits.wait_s

    def begin_wait(self, now: float) -> None:
        """Begin the wait for another worker, unless it has begun."""
        self._since_s = min(self._since_s, now)

    def restart_wait(self, now: float) -> None:
        """Begin the wait for another worker anew: there are some, but none can begin it now."""
        self._since_s = now

    def end_wait(self) -> None:
        """End the wait: another worker has it."""
        self._since_s = math.inf

    def waited_s(self, now: float) -> float:
        """Return how long there has been no other worker."""
        return now - self._since_s

    def note_return(self, worker_id: str) -> bool:
        """Remember that a worker gave the request back as it stops; returns True if it did so before."""
        is_again = worker_id in self._returned_by
        self._returned_by.add(worker_id)
        return is_again

    def add(
        self,
        now: float,
        code: ErrorCode,
        why: str,
        num_tokens: int,
        num_prompt_tokens: int,
        *,
        is_suspect: bool = True,
    ) -> str | None:
        """Count a migration after `num_tokens` output tokens; returns why it is not allowed, or None.

        It is fruitless only if the request `is_suspect`: its worker had begun with it.
        """
        limits = self._limits
        self.why, self.code = f"{why}; ", code
        if (num_known := num_prompt_tokens + num_tokens) > MAX_MIGRATED_TOKENS:
            return f"it has {num_known} tokens; at most {MAX_MIGRATED_TOKENS} can be moved"
        if num_tokens > self._num_tokens:
            self._num_tokens, self._num_fruitless = num_tokens, 0
            self._cause_s = -math.inf
        if now - self._cause_s >= limits.same_cause_s:
            if is_suspect and self._num_fruitless >= limits.max_fruitless_migrations:
                return f"moved {self._num_fruitless} times without a new token, the maximum"
            if self._num_causes >= limits.max_migrations:
                return f"moved {self._num_causes} times, the maximum"
            self._cause_s = now
            self._num_causes += 1
            self._num_fruitless += is_suspect
        self.num_migrations += 1
        return None
