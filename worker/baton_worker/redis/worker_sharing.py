"""The state that a worker shares with routers through Redis, if there is one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from baton_core.sessions.worker_info import WorkerInfo
from baton_core.worker.worker_events import CacheChanged
from baton_service.redis.records import RouterRecord
from baton_service.redis.redis_settings import RedisSettings
from baton_service.redis.shared_state import SharedState


class WorkerSharing(Protocol):
    """A worker's side."""

    has_locality: bool
    """True if what is cached is written to where routers that have locality read it."""
    finds_routers: bool
    """True if `on_found` is ever called."""
    state: SharedState

    def on_changed(self, changed: CacheChanged) -> None:
        """Have a change of the cache written; the first one there is has to be among them."""
        ...

    async def run(self, on_found: Callable[[Sequence[RouterRecord]], None]) -> None:
        """Share until cancelled, then give the lease back.

        `on_found` is called every second with the routers that are registered.
        """
        ...


class NothingSharedByWorker:
    """A worker without Redis."""

    has_locality = False
    finds_routers = False

    def __init__(self) -> None:
        self.state = SharedState()

    def on_changed(self, changed: CacheChanged) -> None: ...

    async def run(self, on_found: Callable[[Sequence[RouterRecord]], None]) -> None:
        await asyncio.get_running_loop().create_future()


def open_worker_share(settings: RedisSettings, info: WorkerInfo) -> WorkerSharing:
    """Return the sharing that these settings ask for.

    Raises:
        InvalidConfigError: the URL cannot be used.
    """
    if not settings.is_given:
        return NothingSharedByWorker()
    from baton_worker.redis.worker_share import WorkerShare

    return WorkerShare(settings, info)
