"""The interface of the stores of responses: bounded in number, bytes and age, and apart by tenant."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

PAGE_EVENTS: Final = 256
"""Maximum number of events of one page."""
_WAIT_S: Final = 5.0
"""Longest wait for the next event of a response."""


@dataclass(slots=True, kw_only=True)
class StoredResponse:
    """A response as it is kept."""

    body: bytes
    """Its JSON."""
    items: Sequence[bytes] = ()
    """The JSON of each item of the conversation before it, that of earlier responses included."""
    has_events: bool = False
    """True if its events are kept beside it."""
    status: str = "in_progress"
    is_abandoned: bool = False
    """True if it is in progress, but the router that makes it gives no sign any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPage:
    """Some events of a response."""

    first: int
    """Number of the first of them; higher than what was asked for where earlier ones are no longer kept."""
    events: Sequence[bytes]
    """The JSON of each."""
    num_events: int
    """Events that the response has had so far, without the last one, which says how it ended."""
    is_over: bool
    """True if the response is over, and no event follows the page but that one."""


class RunningResponse(Protocol):
    """A kept response, for the call that makes it."""

    def append(self, event: bytes) -> None:
        """Keep its next event; the oldest are dropped where all together take too many bytes."""
        ...

    async def finish(self, body: bytes, status: str, *, may_come_later: bool = False) -> bool:
        """Keep what became of it; returns False if it is not kept.

        Args:
            may_come_later: where the store cannot be reached now, it is kept once that can be.
        """
        ...

    def discard(self) -> None:
        """Forget it, unless it is finished."""
        ...


class ResponseStore(Protocol):
    """Keeps responses by their keys.

    Where it is full, the tenant that holds the most gives way: its oldest go first, those in progress last.

    Every method may raise RequestError: UNAVAILABLE, the store cannot be reached.
    """

    async def put(
        self, key: str, response: StoredResponse, stop: Callable[[], None]
    ) -> RunningResponse | None:
        """Keep a response that begins; None if it is larger than what other tenants leave of the store.

        `stop` is called when somebody else ends or deletes it, or when it is dropped before its end.
        """
        ...

    async def get(self, key: str, *, with_items: bool = False) -> StoredResponse | None:
        """Return a response, with the items before it if they are wanted; None if it is not kept."""
        ...

    async def finish(self, key: str, body: bytes, status: str, *, must_be_abandoned: bool = False) -> bool:
        """End a response in the place of its maker; returns False if it was over or leased.

        Args:
            must_be_abandoned: do so only if its maker still gives no sign.
        """
        ...

    async def delete(self, key: str) -> bool:
        """Forget a response; returns False if it is not kept."""
        ...

    async def read_events(self, key: str, start: int) -> EventPage | None:
        """Return events from number `start` on, after a wait if there are none yet; None if it is not kept.

        The page is empty where none comes within some seconds.
        """
        ...

    async def close(self) -> None: ...


class NewEvents:
    """Wakes calls that wait for the next event of a response."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Event]] = {}

    def wake(self, key: str) -> None:
        """Wake those who wait for news of a response."""
        for event in self._waiting.get(key, ()):
            event.set()

    async def next_page(self, key: str, read: Callable[[], Awaitable[EventPage | None]]) -> EventPage | None:
        """Return what `read` returns; if that is an empty page, read once more after news or some time."""
        news = asyncio.Event()
        waiting = self._waiting.setdefault(key, set())
        waiting.add(news)
        try:
            page = await read()
            if page is None or page.events or page.is_over:
                return page
            with suppress(TimeoutError):
                async with asyncio.timeout(_WAIT_S):
                    await news.wait()
            return await read()
        finally:
            waiting.remove(news)
            if not waiting:
                del self._waiting[key]


def response_key(tenant: str, name: str) -> str:
    """Return the key of a tenant's response; no tenant's name has a colon."""
    return f"{tenant}:{name}"


def tenant_of(key: str) -> str:
    """Return the tenant of a response's key."""
    return key.partition(":")[0]
