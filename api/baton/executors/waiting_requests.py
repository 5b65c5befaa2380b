"""The requests that wait in this process until the cores have room for them."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable

from baton_router.requests.request_text import RequestText


class WaitingRequests:
    """A queue of requests, by their ids.

    Args:
        has_priorities: order them by priority, low numbers first, then by arrival; False: by arrival alone.
    """

    def __init__(self, *, has_priorities: bool) -> None:
        self._has_priorities = has_priorities
        self._levels: dict[int, OrderedDict[str, RequestText]] = {}
        """The requests of each priority, in the order of their arrival."""
        self._priorities: list[int] = []
        """A heap of the keys of the levels."""
        self._level_of: dict[str, int] = {}

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._level_of

    def __len__(self) -> int:
        return len(self._level_of)

    def add(self, text: RequestText) -> None:
        """Queue a request whose id none has that waits."""
        request_id, priority = text.spec.request_id, text.spec.priority if self._has_priorities else 0
        if priority not in self._levels:
            self._levels[priority] = OrderedDict()
            heapq.heappush(self._priorities, priority)
        self._levels[priority][request_id] = text
        self._level_of[request_id] = priority

    def drop(self, request_id: str) -> None:
        """Forget a request; one that does not wait is ignored."""
        if (priority := self._level_of.pop(request_id, None)) is not None:
            del self._levels[priority][request_id]

    @property
    def first(self) -> RequestText | None:
        """The request whose turn it is, or None."""
        while self._priorities and not self._levels[self._priorities[0]]:
            del self._levels[heapq.heappop(self._priorities)]
        return next(iter(self._levels[self._priorities[0]].values())) if self._priorities else None

    def is_ahead_of_one(self, others: Iterable[RequestText]) -> bool:
        """Return whether the request whose turn it is comes before one of others by its priority."""
        first = self.first
        if first is None or not self._has_priorities:
            return False
        return any(first.spec.priority < other.spec.priority for other in others)
