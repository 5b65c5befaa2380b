"""The router's view of which worker holds which block content."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from baton_core.router_messages import CacheDelta


class PrefixIndex:
    """Block hash to the workers that can find it, as a bit per worker."""

    def __init__(self) -> None:
        self._workers: dict[bytes, int] = {}
        self._bits: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._workers)

    def apply(self, worker_id: str, delta: CacheDelta) -> None:
        """Take a worker's report of what it stored and removed."""
        bit = self._bit(worker_id)
        for block_hash in delta.removed:
            self._clear(block_hash, bit)
        for block_hash in delta.stored:
            self._workers[block_hash] = self._workers.get(block_hash, 0) | bit

    def drop(self, worker_id: str) -> None:
        """Forget a worker: it is gone, or it restarted with an empty cache."""
        bit = self._bits.pop(worker_id, 0)
        for block_hash in [block_hash for block_hash, workers in self._workers.items() if workers & bit]:
            self._clear(block_hash, bit)

    def num_cached_blocks(self, hashes: Sequence[bytes], worker_ids: Iterable[str]) -> dict[str, int]:
        """Length, in blocks, of the prefix of `hashes` that each worker holds."""
        bits = {worker_id: self._bits.get(worker_id, 0) for worker_id in worker_ids}
        counts = dict.fromkeys(bits, 0)
        holders = sum(bits.values())
        for depth, block_hash in enumerate(hashes, start=1):
            holders &= self._workers.get(block_hash, 0)
            if not holders:
                break
            counts.update({worker_id: depth for worker_id, bit in bits.items() if bit & holders})
        return counts

    def _bit(self, worker_id: str) -> int:
        if worker_id not in self._bits:
            used = sum(self._bits.values())
            self._bits[worker_id] = ~used & (used + 1)
        return self._bits[worker_id]

    def _clear(self, block_hash: bytes, bit: int) -> None:
        workers = self._workers.get(block_hash, 0) & ~bit
        if workers:
            self._workers[block_hash] = workers
        else:
            self._workers.pop(block_hash, None)
