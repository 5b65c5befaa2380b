"""The sharing of a router with its cluster through Redis; its tasks run on the router's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from baton_core.load_reservation import LoadReservation
from baton_core.requests.adapter import Adapter
from baton_core.sessions.worker_info import WorkerInfo
from baton_router.core.router_events import PeerLoad, PrefixUpdate
from baton_router.redis.adapter_list import AdapterList
from baton_router.redis.load_exchange import LoadExchange
from baton_router.redis.prefix_reader import PrefixReader
from baton_router.redis.shared_adapters import SharedAdapters
from baton_service.redis.link import RedisLink
from baton_service.redis.records import RouterRecord
from baton_service.redis.redis_settings import RedisSettings


class RouterShare:
    """A `RouterSharing` that registers the router, exchanges loads, and reads prefix cache updates.

    Raises:
        InvalidConfigError: the URL cannot be used.
    """

    has_prefix_updates = True

    def __init__(
        self,
        settings: RedisSettings,
        router_id: str,
        epoch: int,
        *,
        on_update: Callable[[PrefixUpdate | PeerLoad], None],
        reservations: Callable[[], Sequence[LoadReservation]],
    ) -> None:
        self._link = RedisLink(settings)
        self.state = self._link.state
        self._router_id = router_id
        self._epoch = epoch
        self._prefixes = PrefixReader(self._link, on_update)
        self._loads = LoadExchange(self._link, router_id, reservations, on_update)
        self._adapters = AdapterList(self._link)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def is_first(self) -> bool:
        return self._loads.is_first

    @property
    def http_addresses(self) -> tuple[str, ...]:
        return self._loads.http_addresses

    def start(self, address: str, http_address: str, adapters: SharedAdapters) -> None:
        record = RouterRecord(
            router_id=self._router_id, epoch=self._epoch, address=address, http_address=http_address
        )
        work = (self._prefixes.run(), self._loads.run(record), self._adapters.run(adapters))
        self._tasks = [asyncio.create_task(one) for one in work]

    def on_joined(self, info: WorkerInfo) -> None:
        self._prefixes.follow(info.worker_id, info.epoch)

    def on_left(self, worker_id: str) -> None:
        self._prefixes.forget(worker_id)

    def on_load_changed(self) -> None:
        self._loads.on_changed()

    async def put_adapter(self, adapter: Adapter) -> None:
        await self._adapters.put(adapter)

    async def remove_adapter(self, name: str) -> None:
        await self._adapters.remove(name)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._link.close(self._loads.release)
