"""The responses that one router makes and keeps in Redis: written and leased by one task.

Where Redis is away, what is to be written waits: events within their bounds, ends for minutes. These are ends
of responses that had begun before, for without Redis none begins.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from redis.exceptions import ResponseError

from baton_router.http.response_stores.redis_table import ResponseTable
from baton_service.redis.link import is_of_content, wait_for

_WRITTEN_WITHIN_S: Final = 2.0
"""Time that a response which is over waits until that is written."""
_END_KEPT_S: Final = 600.0
"""Time that an end waits for Redis."""
_RENEWALS: Final = 0.1
"""Time between renewals, as a part of the lease."""
_MAX_EVENTS: Final = 512
"""Maximum number of events of one write."""
_MAX_RENEWALS: Final = 512
"""Maximum number of leases of one renewal."""
_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True, eq=False)
class RedisRunning:
    """A `RunningResponse` whose writes wait for their turn."""

    key: str
    maker: str
    """A name of its own, which a later response with the same key does not have."""
    stop: Callable[[], None]
    max_event_bytes: int
    on_changed: Callable[[], None]
    events: deque[bytes] = field(default_factory=deque)
    number: int = 0
    """Number of the first event that waits, or of the next one."""
    end: tuple[bytes, str] | None = None
    ended_s: float | None = None
    """Time of its end, on the loop's clock; None while it is in progress."""
    is_discarded: bool = False
    is_kept: bool = False
    is_written: asyncio.Event = field(default_factory=asyncio.Event)
    _num_bytes: int = 0

    def append(self, event: bytes) -> None:
        self.events.append(event)
        self._num_bytes += len(event)
        while self._num_bytes > self.max_event_bytes:
            self._drop_first()
        self.on_changed()

    async def finish(self, body: bytes, status: str, *, may_come_later: bool = False) -> bool:
        self.end = body, status
        self._end()
        with suppress(TimeoutError):
            async with asyncio.timeout(_WRITTEN_WITHIN_S):
                await self.is_written.wait()
        self.is_discarded = not (may_come_later or self.is_written.is_set())
        return self.is_kept

    def discard(self) -> None:
        if self.ended_s is None:
            self.is_discarded = True
            self._end()

    def drop_until(self, number: int) -> None:
        """Forget the waiting events before `number`."""
        while self.number < number:
            self._drop_first()

    def _drop_first(self) -> None:
        self._num_bytes -= len(self.events.popleft())
        self.number += 1

    def _end(self) -> None:
        self.ended_s = asyncio.get_running_loop().time()
        self.on_changed()


class RunningResponses:
    """Writes what the running responses have to say, and renews their leases."""

    def __init__(self, table: ResponseTable, *, max_event_bytes: int, lease_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._table = table
        self._max_event_bytes = max_event_bytes
        self._lease_s = lease_s
        self._running: dict[str, RedisRunning] = {}
        self._is_changed = asyncio.Event()
        self._renewal_s = self._loop.time()
        """Time of the next renewal of all leases."""

    def add(self, key: str, maker: str, stop: Callable[[], None]) -> RedisRunning:
        """Take a response that has been put."""
        running = self._running[maker] = RedisRunning(
            key=key,
            maker=maker,
            stop=stop,
            max_event_bytes=self._max_event_bytes,
            on_changed=self._is_changed.set,
        )
        return running

    def check_soon(self, key: str) -> None:
        """Find out whether somebody else has ended the response of this key."""
        if any(running.key == key for running in self._running.values()):
            self._renewal_s = self._loop.time()
            self._is_changed.set()

    async def step(self) -> None:
        """Write once there is something to write, or it is time to renew."""
        await wait_for(self._is_changed, max(0.0, self._renewal_s - self._loop.time()))
        await self.write_all()

    async def write_all(self) -> None:
        """Write all that waits."""
        for running in list(filter(self._is_given_up, self._running.values())):
            self._remove(running)
            if not running.is_discarded:
                _log.warning("response %s is not kept: Redis did not take its end", running.key)
        for running in list(self._running.values()):
            try:
                await self._write(running)
            except ResponseError as error:
                if not is_of_content(error):
                    raise
                _log.warning("response %s is not kept: Redis says %s", running.key, error)
                self._lose(running)
        if self._loop.time() >= self._renewal_s:
            await self._renew()
            self._renewal_s = self._loop.time() + _RENEWALS * self._lease_s

    def _is_given_up(self, running: RedisRunning) -> bool:
        """Return whether Redis was away for too long after a response had ended, or could not be put."""
        kept_s = self._lease_s if running.end is None else _END_KEPT_S
        return running.ended_s is not None and self._loop.time() - running.ended_s > kept_s

    async def _write(self, running: RedisRunning) -> None:
        while running.events and not running.is_discarded:
            number, events = running.number, list(islice(running.events, _MAX_EVENTS))
            if not await self._table.write(running.key, running.maker, number, events):
                self._lose(running)
                return
            running.drop_until(number + len(events))
        if running.end is not None and not running.is_discarded:
            running.is_kept = await self._table.finish(
                running.key, *running.end, maker=running.maker, number=running.number
            )
        if running.is_discarded:  # maybe while Redis took its end
            await self._table.delete(running.key, running.maker)
        if running.ended_s is not None:
            self._remove(running)

    async def _renew(self) -> None:
        makers = [(each.key, each.maker) for each in self._running.values()]
        for start in range(0, len(makers), _MAX_RENEWALS):
            for maker in await self._table.renew(makers[start : start + _MAX_RENEWALS]):
                if (running := self._running.get(maker)) is not None:
                    self._lose(running)

    def _lose(self, running: RedisRunning) -> None:
        self._remove(running)
        if running.ended_s is None:
            running.stop()

    def _remove(self, running: RedisRunning) -> None:
        self._running.pop(running.maker, None)
        running.is_written.set()
