"""The interface of a router to the rest of its cluster, and the one that shares nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from baton_core.load_reservation import LoadReservation
from baton_core.requests.adapter import Adapter
from baton_core.sessions.worker_info import WorkerInfo
from baton_router.core.router_events import PeerLoad, PrefixUpdate
from baton_router.redis.shared_adapters import SharedAdapters
from baton_service.redis.redis_settings import RedisSettings
from baton_service.redis.shared_state import SharedState


class RouterSharing(Protocol):
    """The router's side of sharing through Redis."""

    has_prefix_updates: bool
    """True if prefix cache updates come from outside the session, for workers that publish them there."""
    state: SharedState

    @property
    def is_first(self) -> bool:
        """True for the one router of a cluster that acts for all; for none while Redis is away."""
        ...

    @property
    def http_addresses(self) -> Sequence[str]:
        """Addresses of all living routers' HTTP, of those whose clients may be on other machines."""
        ...

    def start(self, address: str, http_address: str, adapters: SharedAdapters) -> None:
        """Register as a router that workers reach at `address` (`host:port`), and share."""
        ...

    def on_joined(self, info: WorkerInfo) -> None:
        """Take note of a worker that has a session with this router."""
        ...

    def on_left(self, worker_id: str) -> None: ...

    def on_load_changed(self) -> None:
        """Publish the load soon: it may have changed."""
        ...

    async def put_adapter(self, adapter: Adapter) -> None:
        """Have all routers serve an adapter; RequestError UNAVAILABLE where Redis is away."""
        ...

    async def remove_adapter(self, name: str) -> None:
        """Have none serve it any longer, as `put_adapter`."""
        ...

    async def stop(self) -> None:
        """Give the lease back and stop sharing."""
        ...


class NothingSharedByRouter:
    """A router without Redis."""

    has_prefix_updates = False
    is_first = True
    http_addresses: Sequence[str] = ()

    def __init__(self) -> None:
        self.state = SharedState()

    def start(self, address: str, http_address: str, adapters: SharedAdapters) -> None: ...

    def on_joined(self, info: WorkerInfo) -> None: ...

    def on_left(self, worker_id: str) -> None: ...

    def on_load_changed(self) -> None: ...

    async def put_adapter(self, adapter: Adapter) -> None: ...

    async def remove_adapter(self, name: str) -> None: ...

    async def stop(self) -> None: ...


def open_router_share(
    settings: RedisSettings,
    router_id: str,
    epoch: int,
    *,
    on_update: Callable[[PrefixUpdate | PeerLoad], None],
    reservations: Callable[[], Sequence[LoadReservation]],
) -> RouterSharing:
    """Return the sharing of a router with these settings.

    Args:
        on_update: called on the loop with each update.
        reservations: returns the load that this router has reserved.

    Raises:
        InvalidConfigError: the URL cannot be used.
    """
    if not settings.is_given:
        return NothingSharedByRouter()
    from baton_router.redis.router_share import RouterShare

    return RouterShare(settings, router_id, epoch, on_update=on_update, reservations=reservations)
