"""What a router shares with the rest of its cluster through Redis; its tasks run on the router's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from baton_core.routing.charge import Charge
from baton_core.routing.router_events import LocalityTold, OthersGave
from baton_core.sessions.worker_info import WorkerInfo
from baton_service.shared_state.ledgers import LedgerExchange
from baton_service.shared_state.link import RedisLink
from baton_service.shared_state.locality_reader import LocalityReader
from baton_service.shared_state.records import RouterRecord
from baton_service.shared_state.settings import RedisSettings


class RouterShare:
    """A `RouterSharing`: registers the router, exchanges ledgers, and hears what workers have cached.

    Raises:
        InvalidConfigError: the URL cannot be used.
    """

    has_locality = True

    def __init__(
        self,
        settings: RedisSettings,
        router_id: str,
        epoch: int,
        *,
        tell: Callable[[LocalityTold | OthersGave], None],
        charges: Callable[[], Sequence[Charge]],
    ) -> None:
        self._link = RedisLink(settings)
        self.state = self._link.state
        self._router_id = router_id
        self._epoch = epoch
        self._locality = LocalityReader(self._link, tell)
        self._ledgers = LedgerExchange(self._link, router_id, charges, tell)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def is_first(self) -> bool:
        return self._ledgers.is_first

    def start(self, address: str) -> None:
        record = RouterRecord(router_id=self._router_id, epoch=self._epoch, address=address)
        work = (self._locality.run(), self._ledgers.run(record))
        self._tasks = [asyncio.create_task(one) for one in work]

    def on_joined(self, info: WorkerInfo) -> None:
        self._locality.follow(info.worker_id, info.epoch)

    def on_left(self, worker_id: str) -> None:
        self._locality.forget(worker_id)

    def on_charged(self) -> None:
        self._ledgers.on_changed()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._link.close(self._ledgers.release)
