"""Publishes the changes of a worker's prefix cache to routers and other subscribers."""

from __future__ import annotations

from baton_core.blocks.prefix_cache import PrefixCache
from baton_core.kv_events.cache_events import cache_events
from baton_core.worker.worker_events import CacheChanged, SendToRouter, WorkerEffect
from baton_worker.core.worker_config import WorkerConfig


class CacheReports:
    """The publisher of one worker: routers get a snapshot when they join, then the changes."""

    def __init__(self, cache: PrefixCache, config: WorkerConfig) -> None:
        self._cache = cache
        self._config = config
        self._subscribers: dict[str, None] = {}

    def on_joined(self, router_id: str, *, has_locality: bool) -> list[WorkerEffect]:
        """Send a snapshot, unless the router hears of cached blocks from elsewhere."""
        if has_locality:
            return []
        self._subscribers[router_id] = None
        return [SendToRouter(router_id=router_id, message=self._cache.snapshot())]

    def on_lost(self, router_id: str) -> None:
        self._subscribers.pop(router_id, None)

    def publish(self) -> list[WorkerEffect]:
        """Publish the changes since the last call, if there are any."""
        pending_contents = self._cache.pending_contents if self._config.publishes_cache else ()
        delta = self._cache.take_delta()
        if delta is None:
            return []
        effects: list[WorkerEffect] = [
            SendToRouter(router_id=name, message=delta) for name in self._subscribers
        ]
        if self._config.publishes_cache:
            block_size, epoch = self._config.paging.block_size, self._config.epoch
            events = cache_events(delta, pending_contents, block_size=block_size, epoch=epoch)
            effects.append(CacheChanged(delta=delta, events=events))
        return effects
