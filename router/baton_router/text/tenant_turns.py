"""Places that tenants take in turns: a wait for one lasts a turn of each other tenant, not its backlog."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter

from baton_core.errors import ErrorCode, RequestError


class TenantTurns:
    """Places for work. A tenant takes all of them but one, so that the others find one.

    Args:
        num_places: pieces of work at a time; of a single place each tenant takes that one.
        max_waiting: pieces of work that wait; of more, the newest of the tenant with the most is refused.
    """

    def __init__(self, num_places: int, *, max_waiting: int = sys.maxsize) -> None:
        self._num_free = num_places
        self._most_of_one = max(1, num_places - 1)
        self._max_waiting = max_waiting
        self._waiting: dict[asyncio.Future[None], str] = {}
        """Turns that are waited for and their tenants, the oldest first."""
        self._num_held = Counter[str]()
        self._num_turns = 0
        self._last_turns = Counter[str]()
        """Number of each tenant's last turn; 0 before the first."""

    async def take(self, tenant: str) -> None:
        """Wait for a place, which is the caller's until `release`.

        Raises:
            RequestError: OVERLOADED, too many wait; UNAVAILABLE, the router shuts down.
        """
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = tenant
        self._fill()
        if len(self._waiting) > self._max_waiting:
            text = f"{self._max_waiting} texts wait for their turn; allowed: {self._max_waiting}"
            self._refuse(self._newest_of_most(tenant), RequestError(ErrorCode.OVERLOADED, text))
        try:
            await turn
        except asyncio.CancelledError:
            self._waiting.pop(turn, None)
            if not turn.cancelled() and turn.exception() is None:  # the place came all the same
                self.release(tenant)
            raise

    def release(self, tenant: str) -> None:
        """Give a place back."""
        self._num_free += 1
        self._num_held[tenant] -= 1
        self._fill()

    def close(self) -> None:
        """Refuse all that wait."""
        for turn in list(self._waiting):
            self._refuse(turn, RequestError(ErrorCode.UNAVAILABLE, "the router shuts down"))

    def _fill(self) -> None:
        """Give free places away, each to the tenant that has had no turn for longest."""
        while self._num_free and (turn := self._next()) is not None:
            tenant = self._waiting.pop(turn)
            self._num_free -= 1
            self._num_turns += 1
            self._num_held[tenant] += 1
            self._last_turns[tenant] = self._num_turns
            turn.set_result(None)

    def _next(self) -> asyncio.Future[None] | None:
        """Return the oldest turn of the tenant whose turn it is; None where no tenant may take a place."""
        allowed = [
            turn
            for turn, tenant in self._waiting.items()
            if self._num_held[tenant] < self._most_of_one and not turn.done()
        ]
        return min(allowed, key=lambda turn: self._last_turns[self._waiting[turn]], default=None)

    def _newest_of_most(self, newcomer: str) -> asyncio.Future[None]:
        """Return the newest turn of the tenant with the most, of equal ones the newcomer's."""
        counts = Counter(self._waiting.values())
        tenant = max(counts, key=lambda one: (counts[one], one == newcomer))
        return next(turn for turn in reversed(self._waiting) if self._waiting[turn] == tenant)

    def _refuse(self, turn: asyncio.Future[None], error: RequestError) -> None:
        del self._waiting[turn]
        if not turn.done():
            turn.set_exception(error)
