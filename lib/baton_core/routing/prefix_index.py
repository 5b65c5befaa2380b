"""The router's view of which worker holds which block content.

A block is known by 60 bits of its hash, an integer of two digits: two blocks of 10^7 share them with a
probability of 4 in 100,000, and then a prediction is wrong, never an answer. Workers are bits of a mask;
equal masks are one object. Entries lie in many small dictionaries, so that none takes long to grow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from baton_core.sessions.router_messages import CacheDelta

NUM_SHARDS: Final = 16_384
MAX_SHARED_MASKS: Final = 65_536
"""Masks that are remembered to be shared; when there are more they are forgotten, which costs memory only."""
_KEY: Final = (1 << 60) - 1


@dataclass(slots=True)
class _Teller:
    """A worker that tells what it holds."""

    bit: int
    """Its own in every mask."""
    epoch: int
    number: int = 0
    """Of the last change that it told of."""
    has_blocks: bool = False
    """Whether its bit is in any mask."""


class PrefixIndex:
    """Block hash to the workers that can find it. It needs nobody to have joined.

    What a worker held is forgotten at once by giving up its bit; `sweep` then clears the bit from the
    entries, slice by slice, and makes it free for another worker.
    """

    def __init__(self, num_shards: int = NUM_SHARDS) -> None:
        self._shards: list[dict[int, int]] = [{} for _ in range(num_shards)]
        self._masks: dict[int, int] = {}
        self._tellers: dict[str, _Teller] = {}
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
        """Take what a worker tells of an epoch; what it told of an earlier one is forgotten.

        False when something between the last change and this one was missed: then nothing is applied, and
        the worker's blocks have to be told anew by a snapshot. Parts of one change have one number. What an
        epoch tells after a later one is dropped.
        """
        self.begin_epoch(worker_id, epoch)
        teller = self._tellers[worker_id]
        if epoch < teller.epoch:
            return True
        if delta.is_snapshot:
            self._give_up(teller)
            teller.bit, teller.has_blocks = self._take_bit(), False
        elif delta.number not in (teller.number, teller.number + 1):
            return False
        teller.number = delta.number
        teller.has_blocks |= bool(delta.stored)
        self._clear(delta.removed, teller.bit)
        self._set(delta.stored, teller.bit)
        return True

    def begin_epoch(self, worker_id: str, epoch: int) -> None:
        """Forget what a worker told of earlier epochs."""
        teller = self._tellers.get(worker_id)
        if teller is None or teller.epoch < epoch:
            self.drop(worker_id)
            self._tellers[worker_id] = _Teller(self._take_bit(), epoch)

    def drop(self, worker_id: str) -> None:
        """Forget a worker: it is gone, or it restarted with an empty cache."""
        if (teller := self._tellers.pop(worker_id, None)) is not None:
            self._give_up(teller)

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
        """Length, in blocks, of the prefix of `hashes` that a worker holds, of those that hold any.

        A worker gives up the end of a prefix before its beginning, so one that holds a block is taken to hold
        those before it if it holds the first: the ends are found by halving.
        """
        if not hashes or not (first := self._holders(hashes[0])):
            return {}
        names = {teller.bit: worker_id for worker_id, teller in self._tellers.items()}
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

    def _give_up(self, teller: _Teller) -> None:
        if teller.has_blocks:
            self._given_up |= teller.bit
        else:
            self._used &= ~teller.bit


def _key(block_hash: bytes) -> int:
    return int.from_bytes(block_hash, "little") & _KEY


def _names(mask: int, names: dict[int, str]) -> Iterator[str]:
    while mask:
        bit = mask & -mask
        yield names[bit]
        mask ^= bit
