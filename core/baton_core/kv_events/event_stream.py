"""The batches of one producer as a follower reads them: in order, each once; missing ones are replayed.

Batches come live and from the replay socket, and may be lost on the way; a producer that starts again counts
from 0. Whatever cannot be had any more is made up for by forgetting: the next change says that what was known
before it does not count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from baton_core.kv_events.cache_delta import CacheDelta
from baton_core.kv_events.encoding import KVEventBatch
from baton_core.kv_events.events import DEVICE_MEDIUM, AllBlocksCleared, BlockHash, BlockStored, KVEvent

MAX_HELD: Final = 10_000
"""Live batches that wait for earlier ones; with more, the earlier ones count as lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedChange:
    """One batch, as a change of what is known of its producer."""

    sequence: int
    batch: KVEventBatch
    delta: CacheDelta
    """Numbered by `sequence`, from 1 on; a snapshot where earlier knowledge does not count any more."""

    @property
    def epoch(self) -> int | None:
        return _epoch(self.batch)


class EventStream:
    """The event stream of one producer, from the sequence number `first` on."""

    def __init__(self, first: int = 0) -> None:
        self._next = first
        self._last: KVEventBatch | None = None
        """The batch before `_next`, if it was read."""
        self._is_fresh = True
        """True if the next change begins anew."""
        self._last_live = -1
        self._epoch: int | None = None
        self._held: dict[int, KVEventBatch] = {}
        """Batches that wait for the ones before them."""
        self._num_replayed = 0
        self._wants_replay = True

    @property
    def wants_replay(self) -> bool:
        """True if something is known to be missing, or nothing was asked yet."""
        return self._wants_replay

    def begin_replay(self) -> int:
        """The sequence number to ask from: that of the last batch read, which proves who answers."""
        self._wants_replay, self._num_replayed = False, 0
        return self._next if self._last is None else self._next - 1

    def on_live(self, sequence: int, batch: KVEventBatch) -> list[FollowedChange]:
        """Take what was published; what is not in order waits for a replay."""
        if self._is_of_another(sequence, batch) or sequence <= self._last_live:
            self._restart()
        self._last_live = sequence
        return self._take(sequence, batch)

    def on_replayed(self, sequence: int, batch: KVEventBatch) -> list[FollowedChange]:
        """Take an answer to the replay that was begun last."""
        self._num_replayed += 1
        if self._is_of_another(sequence, batch):
            self._restart()
        return self._take(sequence, batch) if self._wants_replay else self._read(sequence, batch)

    def end_replay(self, *, is_complete: bool) -> list[FollowedChange]:
        """Go on with those that waited; `is_complete` tells whether everything asked for has come."""
        if is_complete and self._last is not None and not self._num_replayed:
            self._restart()
        if self._wants_replay:
            return []
        held, self._held = self._held, {}
        return [change for sequence in sorted(held) for change in self._read(sequence, held[sequence])]

    def skip(self, sequence: int) -> None:
        """A batch cannot be read: what it said is lost."""
        if sequence >= self._next:
            self._next, self._last, self._is_fresh = sequence + 1, None, True

    def _is_of_another(self, sequence: int, batch: KVEventBatch) -> bool:
        """True if the producer is not the one that was heard before."""
        epoch = _epoch(batch)
        if epoch is not None and self._epoch is not None and epoch != self._epoch:
            return True
        return self._last is not None and sequence == self._next - 1 and batch.ts != self._last.ts

    def _restart(self) -> None:
        """Begin anew with the first batch of a producer that has started again."""
        self._next, self._last, self._is_fresh = 0, None, True
        self._last_live, self._epoch = -1, None
        self._held.clear()
        self._wants_replay = True

    def _take(self, sequence: int, batch: KVEventBatch) -> list[FollowedChange]:
        if sequence <= self._next or len(self._held) >= MAX_HELD:
            return self._read(sequence, batch)
        self._held[sequence] = batch
        self._wants_replay = True
        return []

    def _read(self, sequence: int, batch: KVEventBatch) -> list[FollowedChange]:
        if sequence < self._next:
            return []
        self._is_fresh |= sequence > self._next
        self._next, self._last = sequence + 1, batch
        self._epoch = _epoch(batch) if self._epoch is None else self._epoch
        delta = _delta(batch.events, number=sequence + 1, is_fresh=self._is_fresh)
        self._is_fresh = False
        return [FollowedChange(sequence=sequence, batch=batch, delta=delta)]


def _epoch(batch: KVEventBatch) -> int | None:
    return next((event.epoch for event in batch.events if event.epoch is not None), None)


def _delta(events: Iterable[KVEvent], *, number: int, is_fresh: bool) -> CacheDelta:
    """The change that the events amount to, for the pool of the model and its first KV group."""
    stored: dict[bytes, None] = {}
    removed: dict[bytes, None] = {}
    for event in events:
        if isinstance(event, AllBlocksCleared):
            stored, removed, is_fresh = {}, {}, True
            continue
        if event.medium not in (None, DEVICE_MEDIUM) or event.group_idx:
            continue
        gained, lost = (stored, removed) if isinstance(event, BlockStored) else (removed, stored)
        for block_hash in map(_as_bytes, event.block_hashes):
            lost.pop(block_hash, None)
            gained[block_hash] = None
    names = () if is_fresh else tuple(removed)
    return CacheDelta(stored=tuple(stored), removed=names, number=number, is_snapshot=is_fresh)


def _as_bytes(block_hash: BlockHash) -> bytes:
    return block_hash if isinstance(block_hash, bytes) else (block_hash % 2**64).to_bytes(8, "big")
