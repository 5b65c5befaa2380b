"""A worker core that is published from a process of its own, until it is killed.

Works when a line comes: `python -m tests.integration.kv_event_producer FOLDER EPOCH`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from baton_core.worker.worker_events import CacheChanged
from baton_worker.kv_events.kv_events_config import KVEventsConfig
from baton_worker.kv_events.publisher import KVEventPublisher
from tests.builders import make_request, make_worker_config
from tests.unit.core.workers import Worker


def kv_events_config(folder: Path, **changes: Any) -> KVEventsConfig:
    """Sockets in a folder."""
    return KVEventsConfig(
        enable_kv_cache_events=True,
        endpoint=f"ipc://{folder}/events",
        replay_endpoint=f"ipc://{folder}/replay",
        **changes,
    )


class Producer(Worker):
    """A worker core whose cache is published."""

    def __init__(self, folder: Path, *, epoch: int = 1, **config: Any) -> None:
        super().__init__(make_worker_config(epoch=epoch, publishes_cache=True))
        self.config = kv_events_config(folder, **config)
        self.publisher = KVEventPublisher(self.config, epoch)
        self.last_sequence = 0
        """Count of batches given to the publisher; the first says that nothing is cached."""

    @property
    def cached(self) -> set[bytes]:
        return set(self.core.pool.cache.snapshot().stored)

    def work(self, num_requests: int, first: int = 1) -> None:
        """Compute prompts that fill the pool several times over."""
        for number in range(num_requests):
            self.generate(make_request(f"r{first}-{number}", prompt=9, first=first + 20 * number))
            while self.core.num_requests:
                self.step()

    def _file(self, effects: list[Any]) -> list[Any]:
        for effect in effects:
            if isinstance(effect, CacheChanged):
                self.publisher.on_changed(effect)
                self.last_sequence += 1
        return super()._file(effects)


def main(folder: str, epoch: str) -> None:
    producer = Producer(Path(folder), epoch=int(epoch))
    for line in sys.stdin:
        producer.work(10, first=int(line))
        sys.stdout.write(" ".join(sorted(block_hash.hex() for block_hash in producer.cached)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
