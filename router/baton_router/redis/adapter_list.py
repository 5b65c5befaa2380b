"""The LoRA adapters that all routers of a cluster serve: what one loads or unloads, the others follow."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, NoReturn

import msgspec

from baton_core.errors import ErrorCode, RequestError
from baton_core.msgpack import decoder_of
from baton_core.requests.adapter import Adapter
from baton_router.redis.shared_adapters import SharedAdapters
from baton_service.redis.entries import read_entries
from baton_service.redis.link import FAULTS, RENEW_S, RedisLink

_PRESENT: Final = b""
"""A field that is always there: without it Redis has lost the list, which is written again."""
_read_adapter: Final[Callable[[bytes], Adapter]] = decoder_of(Adapter)


class AdapterList:
    """A hash in Redis: adapters by name. Each router reads it about once a second."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link
        self._adapters: SharedAdapters | None = None
        """The adapters of this router, once it follows the list."""
        self._turn = asyncio.Lock()
        """Held while the list is read or written."""

    async def run(self, adapters: SharedAdapters) -> NoReturn:
        """Follow the list until cancelled."""
        self._adapters = adapters

        async def step() -> None:
            await self._follow(adapters)
            await asyncio.sleep(RENEW_S)

        await self._link.keep_doing("adapters", step)

    async def put(self, adapter: Adapter) -> None:
        """Have all routers serve an adapter.

        Raises:
            RequestError: UNAVAILABLE, Redis is away.
        """
        await self._change(partial(self._write, adapter))

    async def remove(self, name: str) -> None:
        """Have no router serve an adapter any longer.

        Raises:
            RequestError: UNAVAILABLE, Redis is away.
        """
        await self._change(partial(self._link.command, "HDEL", self._link.keys.adapters, name))

    async def _change(self, change: Callable[[], Awaitable[Any]]) -> None:
        async with self._turn:
            try:
                await change()
            except FAULTS as error:
                text = f"adapters are shared through Redis, which fails ({type(error).__name__}); try again"
                raise RequestError(ErrorCode.UNAVAILABLE, text) from error

    async def _follow(self, adapters: SharedAdapters) -> None:
        """Serve what is listed; what Redis has lost is written again."""
        key = self._link.keys.adapters
        async with self._turn:
            found = await self._link.command("HGETALL", key)
            if _PRESENT not in found:
                if adapters.loaded:
                    await self._write()
                return
            del found[_PRESENT]
            listed, junk = read_entries(self._link, key, found.items(), _read_adapter)
            lost = [adapter for adapter in adapters.loaded if adapter.name.encode() in junk]
            if junk:
                await self._link.command("HDEL", key, *junk)
                await self._write(*lost)
            adapters.follow([*listed, *lost])

    async def _write(self, *changed: Adapter) -> None:
        """Write these, and where Redis has lost the list, all that this router was told to load."""
        key = self._link.keys.adapters
        is_lost = not await self._link.command("HEXISTS", key, _PRESENT)
        loaded = self._adapters.loaded if is_lost and self._adapters is not None else ()
        fields: list[str | bytes] = [_PRESENT, b""]
        for adapter in (*loaded, *changed):
            fields += (adapter.name, msgspec.msgpack.encode(adapter))
        await self._link.command("HSET", key, *fields)
