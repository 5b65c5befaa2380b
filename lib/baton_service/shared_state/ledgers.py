"""What routers have given to workers: each publishes its own ledger, and hears of the others'."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, NoReturn

import msgspec

from baton_core.routing.charge import Charge
from baton_core.routing.router_events import OthersGave
from baton_service.shared_state.link import LEASE_S, RENEW_S, RedisLink, wait_for
from baton_service.shared_state.records import Ledger, RouterRecord, read_ledger
from baton_service.shared_state.scripts import PUT_ROUTER, READ_ROUTERS, RELEASE_ROUTER
from baton_service.shared_state.stream_tail import StreamTail

PUBLISH_EVERY_S: Final = 0.05
"""At most, however often the ledger changes."""
_MAX_LEDGERS: Final = 256
"""Entries that the stream keeps, about; only the last of each router counts."""
_FORGIVEN_S: Final = 1.5 * RENEW_S
"""A Redis that was flushed lacks a living router until that renews its lease."""
_LEASE_MS: Final = int(1e3 * LEASE_S)


class OthersLedgers:
    """The last ledger of each other router. It is believed as long as its lease would last. Pure."""

    def __init__(self, own_id: str) -> None:
        self._own_id = own_id
        self._heard: dict[str, tuple[int, float]] = {}
        """Number of the last ledger, and when its router was heard of."""

    @property
    def is_own_first(self) -> bool:
        """Whether no other router that was heard of comes before this one by name."""
        return all(self._own_id < router_id for router_id in self._heard)

    def hear(self, now: float, ledger: Ledger) -> OthersGave | None:
        """Take a ledger, in whatever order they come; returns what is new."""
        if ledger.router_id == self._own_id:
            return None
        number, _ = self._heard.get(ledger.router_id, (0, now))
        self._heard[ledger.router_id] = max(number, ledger.number), now
        if ledger.number <= number:
            return None
        return OthersGave(router_id=ledger.router_id, charges=ledger.charges)

    def miss(self, now: float, living: Collection[str]) -> list[OthersGave]:
        """Take back what those gave that Redis does not have any more; `living` are those that it has."""
        return self._drop(now - _FORGIVEN_S, living)

    def expire(self, now: float) -> list[OthersGave]:
        """Take back what those gave that were not heard of for the length of a lease: Redis is away."""
        return self._drop(now - LEASE_S, ())

    def _drop(self, silent_since: float, living: Collection[str]) -> list[OthersGave]:
        heard = self._heard.items()
        over = [name for name, (_, at) in heard if at <= silent_since and name not in living]
        for router_id in over:
            del self._heard[router_id]
        return [OthersGave(router_id=router_id, charges=()) for router_id in over]


class LedgerExchange:
    """Of one router; also keeps it registered, because ledger and registration share a lease.

    Args:
        charges: gives what this router has given out.
        tell: called on the loop with what others gave.
    """

    def __init__(
        self,
        link: RedisLink,
        router_id: str,
        charges: Callable[[], Sequence[Charge]],
        tell: Callable[[OthersGave], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._link = link
        self._router_id = router_id
        self._record = b""
        self._charges = charges
        self._tell = tell
        self._others = OthersLedgers(router_id)
        self._tail = StreamTail(link, link.keys.ledgers)
        self._put = link.script(PUT_ROUTER)
        self._release = link.script(RELEASE_ROUTER)
        self._read_routers = link.script(READ_ROUTERS)
        self._number = 0
        self._published: tuple[Charge, ...] = ()
        self._is_changed = asyncio.Event()

    @property
    def is_first(self) -> bool:
        """Whether this router is the first by name of those that are known to live."""
        return self._link.state.is_up and self._others.is_own_first

    def on_changed(self) -> None:
        """Say that `charges` may give something else than before."""
        self._is_changed.set()

    async def run(self, record: RouterRecord) -> NoReturn:
        """Register the router, and publish and listen until cancelled."""
        self._record = msgspec.msgpack.encode(record)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._link.keep_doing("own ledger", self._publish_step))
            tasks.create_task(self._link.keep_doing("other ledgers", self._tail_step))
            tasks.create_task(self._link.keep_doing("registry of routers", self._look_step))
            tasks.create_task(self._expire())
        raise AssertionError("all go on forever")

    async def release(self) -> None:
        """Give the lease back: this router is gone, and with it what it gave."""
        keys, router_id = self._link.keys, self._router_id
        ledger = msgspec.msgpack.encode(Ledger(router_id=router_id, number=self._number + 1))
        names = (keys.routers, keys.router(router_id), keys.ledgers)
        await self._release(names, (router_id, _MAX_LEDGERS, ledger))

    async def _publish_step(self) -> None:
        """Publish the ledger when it changed, and renew the lease in any case."""
        charges = tuple(self._charges())
        is_new = charges != self._published
        self._number += is_new
        await self._write(charges, is_new=is_new)
        self._published = charges
        await asyncio.sleep(PUBLISH_EVERY_S)
        await wait_for(self._is_changed, RENEW_S)

    async def _write(self, charges: tuple[Charge, ...], *, is_new: bool) -> None:
        keys, router_id = self._link.keys, self._router_id
        ledger = Ledger(router_id=router_id, number=self._number, charges=charges)
        values = (self._record, msgspec.msgpack.encode(ledger))
        await self._put(
            (keys.routers, keys.router(router_id), keys.ledgers),
            (router_id, _LEASE_MS, _MAX_LEDGERS, *values, int(is_new)),
        )

    async def _tail_step(self) -> None:
        if not self._tail.has_begun:
            await self._tail.begin()
        for fields in await self._tail.read():
            self._hear(fields[b"ledger"])

    async def _look_step(self) -> None:
        """Read all ledgers now and then, which also shows whose routers live."""
        keys = self._link.keys
        found = await self._read_routers((keys.routers,), (keys.router_prefix, "ledger"))
        living = {self._hear(encoded) for encoded in found}
        self._tell_all(self._others.miss(self._loop.time(), living))
        await asyncio.sleep(RENEW_S)

    async def _expire(self) -> NoReturn:
        while True:
            self._tell_all(self._others.expire(self._loop.time()))
            await asyncio.sleep(RENEW_S)

    def _hear(self, encoded: bytes) -> str:
        """Take a ledger; returns whose it is."""
        ledger = read_ledger(encoded)
        gave = self._others.hear(self._loop.time(), ledger)
        if gave is not None:
            self._tell(gave)
        return ledger.router_id

    def _tell_all(self, gone: Iterable[OthersGave]) -> None:
        for gave in gone:
            self._tell(gave)
