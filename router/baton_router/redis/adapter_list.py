"""The LoRA adapters that all routers of a cluster serve: what one loads or unloads, the others follow."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, NoReturn

import msgspec

from baton_core.errors import ErrorCode, RequestError
from baton_core.msgpack import decoder_of
from baton_core.requests.adapter import Adapter
from baton_router.redis.shared_adapters import SharedAdapters
from baton_service.redis.link import FAULTS, RENEW_S, RedisLink

_PRESENT: Final = b""
"""A field that is always there: without it Redis has lost the list, which is written again."""
_read_adapter: Final[Callable[[bytes], Adapter]] = decoder_of(Adapter)


class AdapterList:
    """A hash in Redis: adapters by name. Each router reads it about once a second."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link
        self._turn = asyncio.Lock()
        """Held while the list is read or written."""

    async def run(self, adapters: SharedAdapters) -> NoReturn:
        """Follow the list until cancelled."""

        async def step() -> None:
            await self._follow(adapters)
            await asyncio.sleep(RENEW_S)

        await self._link.keep_doing("adapters", step)

    async def put(self, adapter: Adapter) -> None:
        """Have all routers serve an adapter.

        Raises:
            RequestError: UNAVAILABLE, Redis is away.
        """
        values = _PRESENT, b"", adapter.name, msgspec.msgpack.encode(adapter)
        await self._change(self._link.command("HSET", self._link.keys.adapters, *values))

    async def remove(self, name: str) -> None:
        """Have no router serve an adapter any longer.

        Raises:
            RequestError: UNAVAILABLE, Redis is away.
        """
        await self._change(self._link.command("HDEL", self._link.keys.adapters, name))

    async def _change(self, command: Awaitable[Any]) -> None:
        async with self._turn:
            try:
                await command
            except FAULTS as error:
                text = f"adapters are shared through Redis, which fails ({type(error).__name__}); try again"
                raise RequestError(ErrorCode.UNAVAILABLE, text) from error

    async def _follow(self, adapters: SharedAdapters) -> None:
        async with self._turn:
            found = await self._link.command("HGETALL", self._link.keys.adapters)
            if found:
                adapters.follow([_read_adapter(value) for name, value in found.items() if name != _PRESENT])
                return
        for adapter in adapters.loaded:
            await self.put(adapter)
