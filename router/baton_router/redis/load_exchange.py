"""Exchange of reserved loads between routers: each publishes its own and reads those of its peers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, NoReturn

import msgspec

from baton_core.load_reservation import LoadReservation
from baton_router.core.router_events import PeerLoad
from baton_router.redis.stream_tail import StreamTail
from baton_service.redis.entries import RouterRegistry, read_entries
from baton_service.redis.link import LEASE_S, RENEW_S, RedisLink, wait_for
from baton_service.redis.records import RouterLoad, RouterRecord, read_router, read_router_load
from baton_service.redis.scripts import PUT_ROUTER, RELEASE_ROUTER

PUBLISH_EVERY_S: Final = 0.05
"""Shortest time between two messages about the own load."""
_MAX_ENTRIES: Final = 256
"""Approximate number of entries in the stream; only the last of each router counts."""
_FORGIVEN_S: Final = 1.5 * RENEW_S
"""Grace period of a router that Redis lacks: after a flush it registers again with its next renewal."""
_LEASE_MS: Final = int(1e3 * LEASE_S)


class PeerLoads:
    """The last load of each other router. It is valid for the length of a lease. Pure."""

    def __init__(self, own_id: str) -> None:
        self._own_id = own_id
        self._heard: dict[str, tuple[int, float]] = {}
        """Number of the last load of each router, and the time of the last sign of it."""

    @property
    def is_own_first(self) -> bool:
        """True if no known router comes before this one by name."""
        return all(self._own_id < router_id for router_id in self._heard)

    def update(self, now: float, load: RouterLoad) -> PeerLoad | None:
        """Take a load, in any order; returns it if it is new."""
        if load.router_id == self._own_id:
            return None
        number, _ = self._heard.get(load.router_id, (0, now))
        self._heard[load.router_id] = max(number, load.number), now
        if load.number <= number:
            return None
        return PeerLoad(router_id=load.router_id, reservations=load.reservations)

    def drop_missing(self, now: float, living: Collection[str]) -> list[PeerLoad]:
        """Clear the loads of routers that Redis no longer has; `living` are those that it has."""
        return self._drop(now - _FORGIVEN_S, living)

    def expire(self, now: float) -> list[PeerLoad]:
        """Clear the loads of routers that gave no sign for the length of a lease, while Redis is away."""
        return self._drop(now - LEASE_S, ())

    def _drop(self, silent_since: float, living: Collection[str]) -> list[PeerLoad]:
        heard = self._heard.items()
        over = [name for name, (_, at) in heard if at <= silent_since and name not in living]
        for router_id in over:
            del self._heard[router_id]
        return [PeerLoad(router_id=router_id, reservations=()) for router_id in over]


class LoadExchange:
    """Publishes one router's load and keeps it registered: load and registration share a lease.

    Args:
        reservations: returns the load that this router has reserved.
        on_update: called on the loop with the load of another router.
    """

    def __init__(
        self,
        link: RedisLink,
        router_id: str,
        reservations: Callable[[], Sequence[LoadReservation]],
        on_update: Callable[[PeerLoad], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._link = link
        self._router_id = router_id
        self._record = b""
        self._reservations = reservations
        self._on_update = on_update
        self._peers = PeerLoads(router_id)
        self._tail = StreamTail(link, link.keys.router_loads)
        self._put = link.script(PUT_ROUTER)
        self._release = link.script(RELEASE_ROUTER)
        self._routers = RouterRegistry(link)
        self.http_addresses: tuple[str, ...] = ()
        """HTTP addresses of the living routers."""
        self._number = 0
        self._published: tuple[LoadReservation, ...] = ()
        self._is_changed = asyncio.Event()

    @property
    def is_first(self) -> bool:
        """True if this router is the first by name of the living ones."""
        return self._link.state.is_up and self._peers.is_own_first

    def on_changed(self) -> None:
        """Publish soon: `reservations` may have changed."""
        self._is_changed.set()

    async def run(self, record: RouterRecord) -> NoReturn:
        """Register the router, and publish and listen until cancelled."""
        self._record = msgspec.msgpack.encode(record)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._link.keep_doing("own load", self._publish_step))
            tasks.create_task(self._link.keep_doing("peer loads", self._tail_step))
            tasks.create_task(self._link.keep_doing("registry of routers", self._registry_step))
            tasks.create_task(self._expire())
        raise AssertionError("all run forever")

    async def release(self) -> None:
        """Give the lease back and clear the published load."""
        keys, router_id = self._link.keys, self._router_id
        load = msgspec.msgpack.encode(RouterLoad(router_id=router_id, number=self._number + 1))
        names = (keys.routers, keys.router(router_id), keys.router_loads)
        await self._release(names, (router_id, _MAX_ENTRIES, load))

    async def _publish_step(self) -> None:
        """Publish the load if it has changed, and renew the lease in any case."""
        reservations = tuple(self._reservations())
        is_new = reservations != self._published
        self._number += is_new
        await self._write(reservations, is_new=is_new)
        self._published = reservations
        await asyncio.sleep(PUBLISH_EVERY_S)
        await wait_for(self._is_changed, RENEW_S)

    async def _write(self, reservations: tuple[LoadReservation, ...], *, is_new: bool) -> None:
        keys, router_id = self._link.keys, self._router_id
        load = RouterLoad(router_id=router_id, number=self._number, reservations=reservations)
        values = (self._record, msgspec.msgpack.encode(load))
        await self._put(
            (keys.routers, keys.router(router_id), keys.router_loads),
            (router_id, _LEASE_MS, _MAX_ENTRIES, *values, int(is_new)),
        )

    async def _tail_step(self) -> None:
        if not self._tail.has_begun:
            await self._tail.begin()
        entries = ((b"load", fields.get(b"load", b"")) for fields in await self._tail.read())
        loads, _ = read_entries(self._link, self._link.keys.router_loads, entries, read_router_load)
        for load in loads:
            self._update(load)

    async def _registry_step(self) -> None:
        """Read all loads now and then, which also shows the living routers."""
        loads = await self._routers.read("load", read_router_load)
        for load in loads:
            self._update(load)
        living = {load.router_id for load in loads}
        records = await self._routers.read("record", read_router)
        self.http_addresses = tuple(record.http_address for record in records if record.http_address)
        self._publish_all(self._peers.drop_missing(self._loop.time(), living))
        await asyncio.sleep(RENEW_S)

    async def _expire(self) -> NoReturn:
        while True:
            self._publish_all(self._peers.expire(self._loop.time()))
            await asyncio.sleep(RENEW_S)

    def _update(self, load: RouterLoad) -> None:
        peer_load = self._peers.update(self._loop.time(), load)
        if peer_load is not None:
            self._on_update(peer_load)

    def _publish_all(self, gone: Iterable[PeerLoad]) -> None:
        for peer_load in gone:
            self._on_update(peer_load)
