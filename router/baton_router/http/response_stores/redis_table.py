"""The responses in Redis, as its scripts read and write them. Every call may raise `FAULTS`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import msgspec

from baton_core.msgpack import decoder_of
from baton_router.http.response_stores.response_store import PAGE_EVENTS, EventPage, StoredResponse
from baton_router.process.http_settings import ResponseStoreLimits
from baton_service.redis.link import Argument, RedisLink
from baton_service.redis.response_scripts import (
    DELETE_RESPONSE,
    PUT_RESPONSE,
    READ_RESPONSE,
    READ_RESPONSE_EVENTS,
    RENEW_RESPONSES,
    WRITE_RESPONSE,
)

_FIELDS: Final = ("status", "has_events", "body")
_read_items: Final[Callable[[bytes], list[bytes]]] = decoder_of(list[bytes])


class ResponseTable:
    """Responses by their keys.

    Args:
        lease_s: time after which a response that is not renewed is abandoned.
    """

    def __init__(self, link: RedisLink, limits: ResponseStoreLimits, lease_s: float) -> None:
        keys = link.keys
        self._max_event_bytes = limits.num_event_bytes
        holders = (keys.response_numbers, keys.response_bytes)
        self._keys = (keys.responses, keys.response_sizes, keys.response_changes, *holders)
        self._prefixes = (keys.response_prefix, keys.response_events_prefix)
        bounds = (limits.num_responses, limits.num_bytes, 1e3 * limits.age_s, 1e3 * lease_s)
        self._bounds = tuple(map(int, bounds))
        self._put = link.script(PUT_RESPONSE)
        self._write = link.script(WRITE_RESPONSE)
        self._renew = link.script(RENEW_RESPONSES)
        self._read = link.script(READ_RESPONSE)
        self._read_events = link.script(READ_RESPONSE_EVENTS)
        self._delete = link.script(DELETE_RESPONSE)

    async def put(self, key: str, maker: str, response: StoredResponse) -> bool:
        """Keep a response that begins; returns False if there is no room for it."""
        items = msgspec.msgpack.encode(response.items)
        arguments = self._arguments(key, maker, int(response.has_events), response.body, items)
        return bool(await self._put(self._keys, arguments))

    async def write(self, key: str, maker: str, number: int, events: Sequence[bytes]) -> bool:
        """Keep events from `number` on, and renew the lease; returns False if it is over or gone."""
        arguments = self._arguments(key, maker, "in_progress", b"", self._max_event_bytes, number, 0, *events)
        return bool(await self._write(self._keys, arguments))

    async def finish(
        self,
        key: str,
        body: bytes,
        status: str,
        *,
        maker: str = "",
        number: int = 0,
        must_be_abandoned: bool = False,
    ) -> bool:
        """End a response, for its maker after event `number`; returns False if it is over or gone.

        One that must be abandoned is not ended, and False returned, while it is leased.
        """
        fields = (maker, status, body, self._max_event_bytes, number, int(must_be_abandoned))
        return bool(await self._write(self._keys, self._arguments(key, *fields)))

    async def renew(self, makers: Collection[tuple[str, str]]) -> set[str]:
        """Renew the leases of (key, maker); returns the makers whose responses are over or gone."""
        fields = [field for pair in makers for field in pair]
        return {maker.decode() for maker in await self._renew(self._keys, self._arguments("", *fields))}

    async def read(self, key: str, *, with_items: bool) -> StoredResponse | None:
        """Return a response; None if it is not kept."""
        fields = (*_FIELDS, "items") if with_items else _FIELDS
        found: list[Any] = await self._read(self._keys, self._arguments(key, *fields))
        if not found or None in found:
            return None
        left_ms, status, has_events, body, *items = found
        return StoredResponse(
            body=body,
            items=_read_items(items[0]) if items else (),
            has_events=has_events == b"1",
            status=status.decode(),
            is_abandoned=status == b"in_progress" and left_ms <= 0,
        )

    async def read_events(self, key: str, start: int) -> EventPage | None:
        """Return events from number `start` on; None if the response is not kept."""
        found: list[Any] = await self._read_events(self._keys, self._arguments(key, start, PAGE_EVENTS))
        if not found:
            return None
        status, num_events, first, events = found
        is_over = status != b"in_progress" and first + len(events) >= num_events
        return EventPage(first=first, events=events, num_events=num_events, is_over=is_over)

    async def delete(self, key: str, maker: str = "") -> bool:
        """Forget a response, of this maker if one is given; returns False if it is not kept."""
        return bool(await self._delete(self._keys, self._arguments(key, maker)))

    def _arguments(self, key: str, *fields: Argument) -> tuple[Argument, ...]:
        return (*self._prefixes, key, *self._bounds, *fields)
