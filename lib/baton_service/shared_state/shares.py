"""What a process shares with its cluster: through Redis, or, without one, nothing.

The client of Redis is imported where it is used: it costs a process 0.2 s of its start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from baton_core.routing.charge import Charge
from baton_core.routing.router_events import LocalityTold, OthersGave
from baton_core.sessions.worker_info import WorkerInfo
from baton_core.worker.worker_events import CacheChanged
from baton_service.shared_state.records import RouterRecord
from baton_service.shared_state.settings import RedisSettings
from baton_service.shared_state.state import SharedState


class WorkerSharing(Protocol):
    """A worker's side."""

    has_locality: bool
    """Whether what is cached is written to where routers that have locality read it."""
    state: SharedState

    def on_changed(self, changed: CacheChanged) -> None:
        """Have a change of the cache written; the first one there is has to be among them."""
        ...

    async def run(self, on_found: Callable[[Sequence[RouterRecord]], None]) -> None:
        """Share until cancelled, then give the lease back.

        `on_found` is called every second with the routers that are registered.
        """
        ...


class RouterSharing(Protocol):
    """A router's side."""

    has_locality: bool
    """Whether it hears from elsewhere than the session what those workers have cached that write it there."""
    state: SharedState

    @property
    def is_first(self) -> bool:
        """Whether this router does what one of the cluster has to do; while Redis is away none does."""
        ...

    def start(self, address: str) -> None:
        """Register as a router that workers reach at `address` (`host:port`), and share."""
        ...

    def on_joined(self, info: WorkerInfo) -> None:
        """A worker has a session with this router."""
        ...

    def on_left(self, worker_id: str) -> None: ...

    def on_charged(self) -> None:
        """What this router has given to workers may have changed."""
        ...

    async def stop(self) -> None:
        """Give the lease back and stop sharing."""
        ...


class NothingSharedByWorker:
    """A worker without Redis."""

    has_locality = False

    def __init__(self) -> None:
        self.state = SharedState()

    def on_changed(self, changed: CacheChanged) -> None: ...

    async def run(self, on_found: Callable[[Sequence[RouterRecord]], None]) -> None:
        await asyncio.get_running_loop().create_future()


class NothingSharedByRouter:
    """A router without Redis."""

    has_locality = False
    is_first = True

    def __init__(self) -> None:
        self.state = SharedState()

    def start(self, address: str) -> None: ...

    def on_joined(self, info: WorkerInfo) -> None: ...

    def on_left(self, worker_id: str) -> None: ...

    def on_charged(self) -> None: ...

    async def stop(self) -> None: ...


def open_worker_share(settings: RedisSettings, info: WorkerInfo) -> WorkerSharing:
    """What a worker shares with these settings.

    Raises:
        InvalidConfigError: the URL cannot be used.
    """
    if not settings.is_given:
        return NothingSharedByWorker()
    from baton_service.shared_state.worker_share import WorkerShare

    return WorkerShare(settings, info)


def open_router_share(
    settings: RedisSettings,
    router_id: str,
    epoch: int,
    *,
    tell: Callable[[LocalityTold | OthersGave], None],
    charges: Callable[[], Sequence[Charge]],
) -> RouterSharing:
    """What a router shares with these settings.

    Args:
        tell: called on the loop with what was heard.
        charges: gives what this router has given to workers.

    Raises:
        InvalidConfigError: the URL cannot be used.
    """
    if not settings.is_given:
        return NothingSharedByRouter()
    from baton_service.shared_state.router_share import RouterShare

    return RouterShare(settings, router_id, epoch, tell=tell, charges=charges)
