"""Responses in Redis: the routers of a cluster share them.

Each router leases the responses that it makes. One whose lease ends is abandoned: its router is gone. After
Redis was away no lease counts as over until the makers have had the time to renew theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar
from uuid import uuid4

from baton_core.errors import ErrorCode, RequestError
from baton_router.http.response_stores.redis_running import RunningResponses
from baton_router.http.response_stores.redis_table import ResponseTable
from baton_router.http.response_stores.response_store import (
    EventPage,
    NewEvents,
    RunningResponse,
    StoredResponse,
)
from baton_router.process.http_settings import ResponseStoreLimits
from baton_router.redis.stream_tail import StreamTail
from baton_service.redis.link import FAULTS, RedisLink
from baton_service.redis.redis_settings import RedisSettings

T = TypeVar("T")
LEASE_S: Final = 10.0
"""Time without a sign of its router after which a response is abandoned."""
WITHIN_S: Final = 3.0
"""Time that a call waits for Redis."""
_FORGIVEN: Final = 0.5
"""Time, as a part of the lease, that a router which reaches Redis again gives others to renew theirs."""
_MAX_CALLS: Final = 16
"""Calls that ask Redis at a time, each on a connection of its own."""
_AWAY: Final = "responses are kept in Redis, which fails now; without it, store may be false"


class RedisResponses:
    """A `ResponseStore` in Redis. Make it on the loop that uses it.

    Args:
        lease_s: as `LEASE_S`.
        within_s: as `WITHIN_S`.

    Raises:
        InvalidConfigError: the URL cannot be used.
    """

    def __init__(
        self,
        settings: RedisSettings,
        limits: ResponseStoreLimits,
        *,
        lease_s: float = LEASE_S,
        within_s: float = WITHIN_S,
    ) -> None:
        self._within_s = within_s
        self._forgiven_s = _FORGIVEN * lease_s
        self._link = RedisLink(settings, within_s)
        self._table = ResponseTable(self._link, limits, lease_s)
        self._running = RunningResponses(self._table, max_event_bytes=limits.num_event_bytes, lease_s=lease_s)
        self._news = NewEvents()
        self._tail = StreamTail(self._link, self._link.keys.response_changes)
        self._turns = asyncio.Semaphore(_MAX_CALLS)
        self._tasks = [
            asyncio.create_task(self._link.keep_doing("responses that are made here", self._running.step)),
            asyncio.create_task(self._link.keep_doing("changes of responses", self._tail_step)),
        ]

    async def put(
        self, key: str, response: StoredResponse, stop: Callable[[], None]
    ) -> RunningResponse | None:
        maker = uuid4().hex
        try:
            is_kept = await self._ask(partial(self._table.put, key, maker, response))
        except BaseException:  # Redis may have it, or take it later
            self._running.add(key, maker, stop).discard()
            raise
        return self._running.add(key, maker, stop) if is_kept else None

    async def get(self, key: str, *, with_items: bool = False) -> StoredResponse | None:
        stored = await self._ask(partial(self._table.read, key, with_items=with_items))
        if stored is not None and self._link.up_for_s < self._forgiven_s:
            stored.is_abandoned = False
        return stored

    async def finish(self, key: str, body: bytes, status: str, *, must_be_abandoned: bool = False) -> bool:
        finish = partial(self._table.finish, key, body, status, must_be_abandoned=must_be_abandoned)
        return await self._ask(finish)

    async def delete(self, key: str) -> bool:
        return await self._ask(partial(self._table.delete, key))

    async def read_events(self, key: str, start: int) -> EventPage | None:
        read = partial(self._ask, partial(self._table.read_events, key, start))
        return await self._news.next_page(key, read)

    async def close(self) -> None:
        """Write what waits, if Redis can be reached."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._link.close(self._running.write_all)

    async def _ask(self, ask: Callable[[], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(self._within_s), self._turns:
                return await ask()
        except FAULTS:
            raise RequestError(ErrorCode.UNAVAILABLE, _AWAY) from None

    async def _tail_step(self) -> None:
        if not self._tail.has_begun:
            await self._tail.begin()
        for fields in await self._tail.read():
            key = fields[b"response"].decode()
            self._news.wake(key)
            if fields[b"is_ended"] == b"1":
                self._running.check_soon(key)
