"""The state that a worker shares with its cluster through Redis; its tasks run on the worker's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from baton_core.sessions.worker_info import WorkerInfo
from baton_core.worker.worker_events import CacheChanged
from baton_service.redis.entries import RouterRegistry
from baton_service.redis.link import RedisLink
from baton_service.redis.records import RouterRecord, read_router
from baton_service.redis.redis_settings import RedisSettings
from baton_worker.redis.prefix_writer import PrefixWriter

LOOK_EVERY_S: Final = 1.0
"""Time until a router that starts is found."""


class WorkerShare:
    """A `WorkerSharing`: registers the worker, writes what it has cached, and finds the routers.

    Raises:
        InvalidConfigError: the URL cannot be used.
    """

    has_locality = True
    finds_routers = True

    def __init__(self, settings: RedisSettings, info: WorkerInfo) -> None:
        self._link = RedisLink(settings)
        self.state = self._link.state
        self._locality = PrefixWriter(self._link, info)
        self._routers = RouterRegistry(self._link)

    def on_changed(self, changed: CacheChanged) -> None:
        self._locality.on_changed(changed.delta)

    async def run(self, on_found: Callable[[Sequence[RouterRecord]], None]) -> None:
        async def look() -> None:
            on_found(await self._routers.read("record", read_router))
            await asyncio.sleep(LOOK_EVERY_S)

        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._locality.run())
                tasks.create_task(self._link.keep_doing("registry of routers", look))
        finally:
            await self._link.close(self._locality.release)
