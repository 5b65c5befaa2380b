"""Responses in the memory of one router, and the choice between this store and the one in Redis."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from baton_router.http.response_stores.response_store import (
    PAGE_EVENTS,
    EventPage,
    NewEvents,
    ResponseStore,
    RunningResponse,
    StoredResponse,
    tenant_of,
)
from baton_router.process.http_settings import ResponseStoreLimits
from baton_service.redis.redis_settings import RedisSettings


@dataclass(slots=True, kw_only=True, eq=False)
class _Entry:
    """A response and its events; for the call that makes it a `RunningResponse`."""

    store: LocalResponses
    key: str
    response: StoredResponse
    created_s: float
    stop: Callable[[], None] = lambda: None
    num_bytes: int = 0
    events: list[bytes] = field(default_factory=list)
    num_event_bytes: int = 0
    num_events: int = 0
    """Events that it has had, those included that are no longer kept."""

    @property
    def is_over(self) -> bool:
        return self.response.status != "in_progress"

    def page(self, start: int) -> EventPage:
        """Return the next events from number `start` on."""
        num_dropped = self.num_events - len(self.events)
        first = max(start, num_dropped)
        events = self.events[first - num_dropped : first - num_dropped + PAGE_EVENTS]
        is_over = self.is_over and first + len(events) >= self.num_events
        return EventPage(first=first, events=events, num_events=self.num_events, is_over=is_over)

    def append(self, event: bytes) -> None:
        if not self.is_over and self.store.has(self):
            self.store.append(self, event)

    async def finish(self, body: bytes, status: str, *, may_come_later: bool = False) -> bool:
        return self.store.end(self, body, status)

    def discard(self) -> None:
        if not self.is_over and self.store.has(self):
            self.stop = lambda: None
            self.store.forget(self)


@dataclass(slots=True, eq=False)
class _Tenant:
    """The responses of one tenant, the oldest first."""

    entries: dict[str, _Entry] = field(default_factory=dict)
    num_bytes: int = 0

    def first_to_go(self) -> _Entry:
        """Return the oldest response that is over, or else the oldest."""
        finished = (entry for entry in self.entries.values() if entry.is_over)
        return next(finished, None) or next(iter(self.entries.values()))


class LocalResponses:
    """A `ResponseStore` in memory."""

    def __init__(self, limits: ResponseStoreLimits) -> None:
        self._limits = limits
        self._entries: dict[str, _Entry] = {}
        self._tenants: defaultdict[str, _Tenant] = defaultdict(_Tenant)
        self._num_bytes = 0
        self._news = NewEvents()

    async def put(
        self, key: str, response: StoredResponse, stop: Callable[[], None]
    ) -> RunningResponse | None:
        self.forget(self._entries.get(key))
        num_bytes = len(response.body) + sum(map(len, response.items))
        if num_bytes > self._limits.num_bytes:
            return None
        entry = _Entry(store=self, key=key, response=response, created_s=time.monotonic())
        self._entries[key] = self._tenants[tenant_of(key)].entries[key] = entry
        self._grow(entry, num_bytes)
        if not self.has(entry):
            return None
        entry.stop = stop
        return entry

    async def get(self, key: str, *, with_items: bool = False) -> StoredResponse | None:
        self._evict()
        entry = self._entries.get(key)
        return None if entry is None else replace(entry.response)

    async def finish(self, key: str, body: bytes, status: str, *, must_be_abandoned: bool = False) -> bool:
        entry = self._entries.get(key)
        if entry is None or must_be_abandoned or not self.end(entry, body, status):
            return False
        entry.stop()
        return True

    async def delete(self, key: str) -> bool:
        return self.forget(self._entries.get(key))

    async def read_events(self, key: str, start: int) -> EventPage | None:
        async def read() -> EventPage | None:
            self._evict()
            entry = self._entries.get(key)
            return None if entry is None else entry.page(start)

        return await self._news.next_page(key, read)

    async def close(self) -> None: ...

    def append(self, entry: _Entry, event: bytes) -> None:
        """Keep the next event of a response that is in progress and kept."""
        entry.events.append(event)
        entry.num_events += 1
        added = len(event)
        while entry.num_event_bytes + added > self._limits.num_event_bytes:
            added -= len(entry.events.pop(0))
        entry.num_event_bytes += added
        self._grow(entry, added)

    def end(self, entry: _Entry, body: bytes, status: str) -> bool:
        """End a response; returns False if it is over or not kept."""
        if entry.is_over or not self.has(entry):
            return False
        added = len(body) - len(entry.response.body)
        entry.response = replace(entry.response, body=body, status=status)
        self._grow(entry, added)
        return self.has(entry)

    def has(self, entry: _Entry) -> bool:
        """Return whether a response is kept."""
        return self._entries.get(entry.key) is entry

    def _grow(self, entry: _Entry, num_bytes: int) -> None:
        entry.num_bytes += num_bytes
        self._tenants[tenant_of(entry.key)].num_bytes += num_bytes
        self._num_bytes += num_bytes
        self._news.wake(entry.key)
        self._evict()

    def forget(self, entry: _Entry | None) -> bool:
        """Keep a response no longer; returns False if there is none."""
        if entry is None:
            return False
        tenant = self._tenants[tenant_of(entry.key)]
        del self._entries[entry.key], tenant.entries[entry.key]
        if not tenant.entries:
            del self._tenants[tenant_of(entry.key)]
        tenant.num_bytes -= entry.num_bytes
        self._num_bytes -= entry.num_bytes
        self._news.wake(entry.key)
        if not entry.is_over:
            entry.stop()
        return True

    def _evict(self) -> None:
        limits = self._limits
        while self._entries:
            oldest = next(iter(self._entries.values()))
            if time.monotonic() - oldest.created_s > limits.age_s:
                self.forget(oldest)
            elif len(self._entries) > limits.num_responses:
                self.forget(max(self._tenants.values(), key=lambda one: len(one.entries)).first_to_go())
            elif self._num_bytes > limits.num_bytes:
                self.forget(max(self._tenants.values(), key=lambda one: one.num_bytes).first_to_go())
            else:
                return


def open_response_store(limits: ResponseStoreLimits, settings: RedisSettings) -> ResponseStore:
    """Return a store in Redis, where there is one, else in memory. Make it on the loop that uses it.

    Raises:
        InvalidConfigError: the URL cannot be used.
    """
    if settings.is_given and limits.num_responses:
        from baton_router.http.response_stores.redis_responses import RedisResponses

        return RedisResponses(settings, limits)
    return LocalResponses(limits)
