"""Who hears of what is cached at this worker, and what they are told."""

from __future__ import annotations

from baton_core.blocks.prefix_cache import PrefixCache
from baton_core.events.cache_events import cache_events
from baton_core.worker.worker_config import WorkerConfig
from baton_core.worker.worker_events import CacheChanged, SendToRouter, WorkerEffect


class CacheReports:
    """Of one worker. Routers get all there is when they join, and changes from then on."""

    def __init__(self, cache: PrefixCache, config: WorkerConfig) -> None:
        self._cache = cache
        self._config = config
        self._hearers: dict[str, None] = {}

    def on_joined(self, router_id: str, *, has_locality: bool) -> list[WorkerEffect]:
        """A router that hears of cached blocks from elsewhere is told nothing."""
        if has_locality:
            return []
        self._hearers[router_id] = None
        return [SendToRouter(router_id=router_id, message=self._cache.snapshot())]

    def on_lost(self, router_id: str) -> None:
        self._hearers.pop(router_id, None)

    def tell(self) -> list[WorkerEffect]:
        """Tell what has changed since the last call, if anything did."""
        untold = self._cache.untold if self._config.publishes_cache else ()
        delta = self._cache.take_delta()
        if delta is None:
            return []
        effects: list[WorkerEffect] = [SendToRouter(router_id=name, message=delta) for name in self._hearers]
        if self._config.publishes_cache:
            block_size, epoch = self._config.paging.block_size, self._config.epoch
            events = cache_events(delta, untold, block_size=block_size, epoch=epoch)
            effects.append(CacheChanged(delta=delta, events=events))
        return effects
