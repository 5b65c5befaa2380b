"""Index of the block contents that each worker has cached.

A block is known by 60 bits of its hash, an integer of two digits: two blocks of 10^7 share them with a
probability of 4 in 100,000, and then a prediction is wrong, never an answer. Workers are bits of a mask;
equal masks are one object. Entries lie in many small dictionaries, so that none takes long to grow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from baton_core.kv_events.cache_delta import CacheDelta

NUM_SHARDS: Final = 16_384
MAX_SHARED_MASKS: Final = 65_536
"""Maximum number of shared masks; beyond it they are forgotten, which only costs memory."""
_KEY: Final = (1 << 60) - 1


@dataclass(slots=True)
class _Publisher:
    """A worker that publishes its cached blocks."""

    bit: int
    """Bit of the worker in every mask."""
    epoch: int
    number: int = 0
    """Number of its last change."""
    has_blocks: bool = False
    """True if its bit is in any mask."""


class PrefixIndex:
    """Maps block hashes to the workers that hold them, registered or not.

    A worker is forgotten at once by giving up its bit. `sweep` then clears the bit from the entries, slice by
    slice, and frees it for another worker.
    """

    def __init__(self, num_shards: int = NUM_SHARDS) -> None:
        self._shards: list[dict[int, int]] = [{} for _ in range(num_shards)]
        self._masks: dict[int, int] = {}
        self._publishers: dict[str, _Publisher] = {}
        self._used = 0
        """Bits that no new worker may take."""
        self._given_up = 0
        """Bits whose entries the next sweep has to clear."""
        self._sweeping = 0
        """Bits that the sweep under way clears."""
        self._next_shard = 0

    def __len__(self) -> int:
        """Blocks known, including those that only wait to be swept."""
        return sum(map(len, self._shards))

    @property
    def needs_sweep(self) -> bool:
        return bool(self._given_up | self._sweeping)

    def apply(self, worker_id: str, delta: CacheDelta, epoch: int = 0) -> bool:
        """Apply a worker's update; updates of its earlier epochs are forgotten.

        False when an update before this one was missed: then nothing is applied, and the worker must publish
        a snapshot. Parts of one update have one number. A late update of an earlier epoch is dropped.
        """
        self.begin_epoch(worker_id, epoch)
        publisher = self._publishers[worker_id]
        if epoch < publisher.epoch:
            return True
        if delta.is_snapshot:
            self._give_up(publisher)
            publisher.bit, publisher.has_blocks = self._take_bit(), False
        elif delta.number not in (publisher.number, publisher.number + 1):
            return False
        publisher.number = delta.number
        publisher.has_blocks |= bool(delta.stored)
        self._clear(delta.removed, publisher.bit)
        self._set(delta.stored, publisher.bit)
        return True

    def begin_epoch(self, worker_id: str, epoch: int) -> None:
        """Forget a worker's earlier epochs."""
        publisher = self._publishers.get(worker_id)
        if publisher is None or publisher.epoch < epoch:
            self.drop(worker_id)
            self._publishers[worker_id] = _Publisher(self._take_bit(), epoch)

    def drop(self, worker_id: str) -> None:
        """Forget a worker: it is gone, or it restarted with an empty cache."""
        if (publisher := self._publishers.pop(worker_id, None)) is not None:
            self._give_up(publisher)

    def sweep(self, max_entries: int) -> None:
        """Clear given-up bits from about `max_entries` entries: whole shards, one at least."""
        while self.needs_sweep and max_entries > 0:
            if not self._sweeping:
                self._sweeping, self._given_up = self._given_up, 0
            shard = self._shards[self._next_shard]
            max_entries -= 1 + len(shard)
            if shard:
                self._shards[self._next_shard] = self._swept(shard)
            self._next_shard = (self._next_shard + 1) % len(self._shards)
            if self._next_shard == 0:
                self._used &= ~self._sweeping
                self._sweeping = 0

    def num_cached_blocks(self, hashes: Sequence[bytes]) -> dict[str, int]:
        """Return the length, in blocks, of the prefix of `hashes` that each worker holds, if it holds any.

        A worker evicts the end of a prefix before its beginning. So a worker that holds a block and the first
        one is taken to hold all between them, and the ends are found by bisection.
        """
        if not hashes or not (first := self._holders(hashes[0])):
            return {}
        names = {publisher.bit: worker_id for worker_id, publisher in self._publishers.items()}
        last = self._holders(hashes[-1]) & first
        lengths = dict.fromkeys(_names(last, names), len(hashes))
        spans = [(0, len(hashes) - 1, first, last)]
        while spans:
            low, high, at_low, at_high = spans.pop()
            if at_low == at_high:
                continue
            if high == low + 1:
                lengths.update(dict.fromkeys(_names(at_low ^ at_high, names), high))
                continue
            middle = (low + high) // 2
            at_middle = self._holders(hashes[middle]) & at_low | at_high
            spans += ((low, middle, at_low, at_middle), (middle, high, at_middle, at_high))
        return lengths

    # --- parts ---

    def _holders(self, block_hash: bytes) -> int:
        key = _key(block_hash)
        mask = self._shards[key % len(self._shards)].get(key, 0)
        return mask & ~(self._given_up | self._sweeping) if mask else 0

    def _set(self, hashes: Sequence[bytes], bit: int) -> None:
        with_bit: dict[int, int] = {}
        for key in map(_key, hashes):
            shard = self._shards[key % len(self._shards)]
            mask = shard.get(key, 0)
            if mask not in with_bit:
                with_bit[mask] = self._shared(mask | bit)
            shard[key] = with_bit[mask]

    def _clear(self, hashes: Sequence[bytes], bit: int) -> None:
        for key in map(_key, hashes):
            shard = self._shards[key % len(self._shards)]
            if mask := shard.get(key, 0) & ~bit:
                shard[key] = self._shared(mask)
            else:
                shard.pop(key, None)

    def _swept(self, shard: dict[int, int]) -> dict[int, int]:
        keep = ~self._sweeping
        return {key: self._shared(left) for key, mask in shard.items() if (left := mask & keep)}

    def _shared(self, mask: int) -> int:
        if len(self._masks) >= MAX_SHARED_MASKS:
            self._masks.clear()
        return self._masks.setdefault(mask, mask)

    def _take_bit(self) -> int:
        bit = ~self._used & (self._used + 1)
        self._used |= bit
        return bit

    def _give_up(self, publisher: _Publisher) -> None:
        if publisher.has_blocks:
            self._given_up |= publisher.bit
        else:
            self._used &= ~publisher.bit


def _key(block_hash: bytes) -> int:
    return int.from_bytes(block_hash, "little") & _KEY


def _names(mask: int, names: dict[int, str]) -> Iterator[str]:
    while mask:
        bit = mask & -mask
        yield names[bit]
        mask ^= bit
