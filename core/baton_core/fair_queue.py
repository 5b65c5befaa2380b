"""A fair queue: the order in which waiting requests are dispatched.

Tenants share by start-time fair queueing: each has a tag that grows by the tokens of its requests that were
taken, and the smallest tag comes first. A tenant's own requests go by priority and age.

Source: Goyal, Vin, Cheng, "Start-time Fair Queueing", SIGCOMM 1996.
"""

from __future__ import annotations

import heapq
import sys
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

MAX_MISSES: Final = 8
"""Number of requests without room after which a round tries only smaller ones, or those of others."""
MAX_SKIPPED: Final = 64
"""Number of a tenant's requests that a round may then leave untried before it leaves out all later ones."""
MAX_PASSED: Final = 64
"""Number of requests that may pass one without room; then it is overdue."""


@dataclass(slots=True, kw_only=True)
class _Waiting:
    request_id: str
    tenant: str
    num_tokens: int
    place: tuple[float, float, int]
    """Sort key among its tenant's requests."""
    num_passed: int = 0
    """Number of requests that were taken although this one was tried before them."""


@dataclass(slots=True, kw_only=True)
class _Tenant:
    name: str
    tag: int
    number: int
    """Order of arrival, which decides between equal tags."""
    queue: list[_Waiting] = field(default_factory=list)


class FairQueue:
    """Holds requests by name. An empty queue forgets the earlier service of its tenants.

    Args:
        aging_s: wait that counts as one step of priority.
    """

    def __init__(self, aging_s: float) -> None:
        self._aging_s = aging_s
        self._waiting: dict[str, _Waiting] = {}
        self._tenants: dict[str, _Tenant] = {}
        self._virtual = 0
        """Tag of the tenant that was served last."""
        self._num_joined = 0
        self._num_taken = 0
        self.num_tokens = 0
        """Tokens of all waiting requests."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    def join(
        self, request_id: str, *, tenant: str, num_tokens: int, priority: int = 0, since_s: float
    ) -> None:
        """Add a request that waits since `since_s`; lower priorities come first."""
        assert request_id not in self._waiting, f"{request_id} waits already"
        self._num_joined += 1
        entry = _Waiting(
            request_id=request_id,
            tenant=tenant,
            num_tokens=num_tokens,
            place=self._place(priority, since_s),
        )
        owner = self._tenants.get(tenant)
        if owner is None:
            owner = _Tenant(name=tenant, tag=self._virtual, number=self._num_joined)
            self._tenants[tenant] = owner
        elif not owner.queue:
            owner.tag, owner.number = max(owner.tag, self._virtual), self._num_joined
        insort(owner.queue, entry, key=attrgetter("place"))
        self._waiting[request_id] = entry
        self.num_tokens += num_tokens

    def take(self, request_id: str) -> int:
        """Remove a request that has found room and charge its tenant; returns its tokens."""
        owner = self._tenants[self._waiting[request_id].tenant]
        self._virtual = max(self._virtual, owner.tag)
        num_tokens = self._remove(request_id)
        owner.tag += num_tokens
        self._num_taken += 1
        self._forget()
        return num_tokens

    def drop(self, request_id: str) -> None:
        """Remove a request that has not found room."""
        self._remove(request_id)
        self._forget()

    def dispatch(self) -> Iterator[str]:
        """Yield the requests to place, in order.

        Before the next one, the caller takes or drops the last one unless it has no room. For one that is
        overdue then, the caller keeps the room that it could have, or ends the round. After `MAX_MISSES`
        without room a round tries only requests that are overdue, smaller than all of these, or of up to as
        many tenants without a miss. Of a tenant it passes over `MAX_SKIPPED` others at most, and no further.
        """
        missed: list[_Waiting] = []
        tenants: set[str] = set()
        num_skipped: Counter[str] = Counter()
        left_out: set[str] = set()
        smallest = sys.maxsize
        for entry in self._in_order(left_out):
            is_other = len(tenants) < MAX_MISSES and entry.tenant not in tenants
            is_tried = len(missed) < MAX_MISSES or entry.num_tokens < smallest or is_other
            if not is_tried and not self.is_overdue(entry.request_id):
                num_skipped[entry.tenant] += 1
                if num_skipped[entry.tenant] > MAX_SKIPPED:
                    left_out.add(entry.tenant)
                continue
            num_taken = self._num_taken
            yield entry.request_id
            if entry.request_id in self._waiting:
                missed.append(entry)
                tenants.add(entry.tenant)
                smallest = min(smallest, entry.num_tokens)
                continue
            for other in missed:
                other.num_passed += self._num_taken - num_taken

    def is_overdue(self, request_id: str) -> bool:
        """Return True if a request waits that `MAX_PASSED` others have passed since it was tried."""
        entry = self._waiting.get(request_id)
        return entry is not None and entry.num_passed >= MAX_PASSED

    def num_tokens_ahead(self, request_id: str) -> int:
        """Return the tokens of requests before this one, if no other joins and all find room."""
        total = 0
        for entry in self._in_order():
            if entry.request_id == request_id:
                break
            total += entry.num_tokens
        return total

    def length_with(self, tenant: str, num_requests: int, *, priority: int, since_s: float) -> int:
        """Return the length of the queue with so many more requests of a tenant, once others gave way.

        Those are the requests of the tenant that come after these, and of others as many as they have more.
        """
        owner = self._tenants.get(tenant)
        num_own = num_requests
        if owner is not None:
            num_own += bisect_right(owner.queue, self._place(priority, since_s), key=attrgetter("place"))
        others = (len(one.queue) for one in self._tenants.values() if one is not owner)
        return num_own + sum(min(length, num_own) for length in others)

    def last_of_longest(self) -> str | None:
        """Return the last request of the tenant with the most requests; None if the queue is empty."""
        owner = max(self._tenants.values(), key=lambda one: (len(one.queue), one.number), default=None)
        return owner.queue[-1].request_id if owner and owner.queue else None

    def check_invariants(self) -> None:
        """Raise AssertionError unless each request is in one place, in order."""
        entries = [entry for owner in self._tenants.values() for entry in owner.queue]
        assert {entry.request_id: entry for entry in entries} == self._waiting
        assert len(entries) == len(self._waiting)
        for owner in self._tenants.values():
            assert all(entry.tenant == owner.name for entry in owner.queue)
            places = [entry.place for entry in owner.queue]
            assert places == sorted(places)
            assert owner.queue or owner.tag > self._virtual, f"{owner.name} is kept without need"

    def _place(self, priority: int, since_s: float) -> tuple[float, float, int]:
        """Return the place among its tenant's requests of the one that joined last."""
        return priority * self._aging_s + since_s, since_s, self._num_joined

    def _in_order(self, left_out: Container[str] = ()) -> Iterator[_Waiting]:
        """Yield all requests in order; the last one may be removed before the next.

        No more come of the tenants in `left_out`, to which the caller may add that of the last one.
        """
        heap = [(owner.tag, owner.number, 0) for owner in self._tenants.values() if owner.queue]
        owners = {owner.number: owner for owner in self._tenants.values()}
        heapq.heapify(heap)
        while heap:
            tag, number, index = heapq.heappop(heap)
            queue = owners[number].queue
            entry = queue[index]
            yield entry
            index += entry.request_id in self._waiting
            if index < len(queue) and entry.tenant not in left_out:
                heapq.heappush(heap, (tag + entry.num_tokens, number, index))

    def _remove(self, request_id: str) -> int:
        entry = self._waiting.pop(request_id)
        queue = self._tenants[entry.tenant].queue
        del queue[bisect_left(queue, entry.place, key=attrgetter("place"))]
        self.num_tokens -= entry.num_tokens
        return entry.num_tokens

    def _forget(self) -> None:
        """Remove tenants whose state equals that of a new one."""
        if not self._waiting:
            self._tenants.clear()
            self._virtual = 0
            return
        idle = [owner for owner in self._tenants.values() if not owner.queue and owner.tag <= self._virtual]
        for owner in idle:
            del self._tenants[owner.name]
