"""The owner of each KV block: it says when a block may be used again.

One pool per worker serves all KV groups, called on the loop thread only. Sequences and leases hold
references; a block without any is cached, if its content is findable, or free. `free + used + cached ==
total` holds after every call.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import compress
from types import MappingProxyType
from typing import Final

from baton_core.blocks.block_residency import BlockResidency
from baton_core.blocks.prefix_cache import PrefixCache
from baton_core.kv_events.cache_events import BlockContent


class BlockState(StrEnum):
    FREE = "free"
    ACTIVE = "active"
    """Referenced by sequences, perhaps by leases too."""
    HELD = "held"
    """Referenced by leases only."""
    CACHED = "cached"
    """Referenced by nobody; evicted when blocks run out."""
    PULLING = "importing"
    """A transfer writes it; it must not be read."""
    QUARANTINED = "quarantined"
    """Given up by its transfer, but a late write may still land in it."""


class BlockInput(StrEnum):
    ALLOCATE = "allocate"
    IMPORT = "import"
    SHARE = "share"
    LEASE = "lease"
    VERIFY = "verify"
    DROP_TO_LEASE = "drop_to_lease"
    DROP_TO_CACHE = "drop_to_cache"
    DROP_TO_FREE = "drop_to_free"
    EVICT = "evict"
    DISCARD = "discard"
    QUARANTINE = "quarantine"
    FENCE = "fence"


_NO_CONTENTS: Final[Mapping[bytes, BlockContent]] = MappingProxyType({})
_S, _I = BlockState, BlockInput
TRANSITIONS: Final[dict[tuple[BlockState, BlockInput], BlockState]] = {
    (_S.FREE, _I.ALLOCATE): _S.ACTIVE,
    (_S.FREE, _I.IMPORT): _S.PULLING,
    (_S.ACTIVE, _I.SHARE): _S.ACTIVE,
    (_S.ACTIVE, _I.LEASE): _S.ACTIVE,
    (_S.ACTIVE, _I.DROP_TO_LEASE): _S.HELD,
    (_S.ACTIVE, _I.DROP_TO_CACHE): _S.CACHED,
    (_S.ACTIVE, _I.DROP_TO_FREE): _S.FREE,
    (_S.HELD, _I.SHARE): _S.ACTIVE,
    (_S.HELD, _I.LEASE): _S.HELD,
    (_S.HELD, _I.DROP_TO_CACHE): _S.CACHED,
    (_S.HELD, _I.DROP_TO_FREE): _S.FREE,
    (_S.CACHED, _I.SHARE): _S.ACTIVE,
    (_S.CACHED, _I.LEASE): _S.HELD,
    (_S.CACHED, _I.EVICT): _S.FREE,
    (_S.PULLING, _I.SHARE): _S.PULLING,
    (_S.PULLING, _I.VERIFY): _S.ACTIVE,
    (_S.PULLING, _I.DISCARD): _S.FREE,
    (_S.PULLING, _I.QUARANTINE): _S.QUARANTINED,
    (_S.QUARANTINED, _I.FENCE): _S.FREE,
}


class BlockPool:
    """Blocks 0 to `num_blocks` - 1, all of one shape."""

    def __init__(
        self,
        num_blocks: int,
        *,
        enable_prefix_caching: bool = True,
        residency: BlockResidency | None = None,
    ) -> None:
        self.num_blocks = num_blocks
        self.residency = residency
        """Measures how long blocks stay; None: nothing does."""
        self.now = 0.0
        """The time that it measures by, which the pool's owner keeps."""
        self.cache = PrefixCache(is_enabled=enable_prefix_caching)
        self._states = [BlockState.FREE] * num_blocks
        self._num_seq_refs = [0] * num_blocks
        self._num_lease_refs = [0] * num_blocks
        self._generations = [0] * num_blocks
        self._pull_hashes: dict[int, bytes | None] = {}
        self._pull_contents: dict[int, BlockContent] = {}
        self._free = deque(range(num_blocks))
        self._lru: OrderedDict[int, None] = OrderedDict()
        self.num_quarantined = 0
        """Blocks that nobody may use until no late write can land in them."""

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return len(self._lru)

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can give out."""
        return len(self._free) + len(self._lru)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_available

    def state(self, block_id: int) -> BlockState:
        return self._states[block_id]

    def blocks_in(self, *states: BlockState) -> set[int]:
        return {block_id for block_id, state in enumerate(self._states) if state in states}

    def generation(self, block_id: int) -> int:
        """Number of times that the block was allocated."""
        return self._generations[block_id]

    def num_references(self, block_id: int) -> int:
        """Number of references by sequences and by leases."""
        return self._num_seq_refs[block_id] + self._num_lease_refs[block_id]

    def is_writable(self, block_id: int) -> bool:
        """True if its one sequence may write it: nobody else reads it, now or through the cache."""
        is_only_reader = self._num_seq_refs[block_id] == 1 and self._num_lease_refs[block_id] == 0
        return (
            self._states[block_id] is BlockState.ACTIVE
            and is_only_reader
            and self.cache.hash_of(block_id) is None
        )

    def is_valid(self, block_id: int) -> bool:
        """True if its content may be read."""
        return self._states[block_id] in (BlockState.ACTIVE, BlockState.HELD, BlockState.CACHED)

    # --- sequences ---

    def allocate(self, count: int) -> list[int] | None:
        """Give out `count` blocks with one sequence reference each; None when there are not that many."""
        if count > self.num_available:
            return None
        return [self._take(BlockInput.ALLOCATE) for _ in range(count)]

    def share(self, block_ids: Iterable[int]) -> None:
        """Add a sequence reference to each."""
        for block_id in block_ids:
            self._apply(block_id, BlockInput.SHARE)
            self._lru.pop(block_id, None)
            self._num_seq_refs[block_id] += 1
            if self.residency is not None and self.cache.hash_of(block_id) is not None:
                self.residency.on_accessed(block_id, self.now)

    def release(self, block_ids: Sequence[int]) -> None:
        """Drop a sequence reference of each, last block first, so that a prefix outlives its extensions."""
        for block_id in reversed(block_ids):
            assert self._num_seq_refs[block_id] > 0, f"block {block_id} has no sequence reference"
            self._num_seq_refs[block_id] -= 1
            self._settle(block_id)

    def publish(self, block_id: int, block_hash: bytes, content: BlockContent | None = None) -> None:
        """Make a full, computed block findable by its content, unless another one is already."""
        assert self.is_valid(block_id), f"block {block_id} is {self._states[block_id]}"
        if self.cache.hash_of(block_id) is None:
            self.cache.insert(block_id, block_hash, content)

    def forget_cached(self) -> int:
        """Free the blocks that nobody refers to, content and all; returns how many there were."""
        num_cached = len(self._lru)
        while self._lru:
            self._evict(next(iter(self._lru)))
        if num_cached and not len(self.cache):
            self.cache.mark_cleared()
        return num_cached

    def forget(self, block_ids: Iterable[int]) -> None:
        """Let nobody find these blocks, whose content is not to be trusted; they are free once unused."""
        for block_id in block_ids:
            if block_id in self._lru:
                self._evict(block_id)
            else:
                self.cache.remove(block_id)

    # --- leases ---

    def lease(self, block_ids: Iterable[int]) -> None:
        """Add a lease reference to each."""
        for block_id in block_ids:
            self._apply(block_id, BlockInput.LEASE)
            self._lru.pop(block_id, None)
            self._num_lease_refs[block_id] += 1

    def end_lease(self, block_ids: Sequence[int]) -> None:
        """Drop a lease reference of each, last block first."""
        for block_id in reversed(block_ids):
            assert self._num_lease_refs[block_id] > 0, f"block {block_id} has no lease"
            self._num_lease_refs[block_id] -= 1
            self._settle(block_id)

    # --- imports ---

    def begin_pull(
        self, hashes: Sequence[bytes | None], contents: Mapping[bytes, BlockContent] = _NO_CONTENTS
    ) -> list[int] | None:
        """Give out a block per hash (None for a partial block) to be written by a transfer.

        The caller shares them with the sequences that wait; the transfer itself holds no reference and
        ends each block's import with `verify`, `discard` or `quarantine`.
        """
        if len(hashes) > self.num_available:
            return None
        block_ids = [self._take(BlockInput.IMPORT) for _ in hashes]
        for block_id, block_hash in zip(block_ids, hashes, strict=True):
            self._pull_hashes[block_id] = block_hash
            if block_hash is not None:
                self.cache.begin_pull(block_id, block_hash)
                if (content := contents.get(block_hash)) is not None:
                    self._pull_contents[block_id] = content
        return block_ids

    def verify(self, block_id: int) -> None:
        """The content arrived and is right: readable, and findable if it has a hash."""
        content = self._pull_contents.get(block_id)
        block_hash = self._end_pull(block_id)
        self._apply(block_id, BlockInput.VERIFY)
        if block_hash is not None:
            self.cache.insert(block_id, block_hash, content)
        self._settle(block_id)

    def discard(self, block_id: int) -> None:
        """The content will not arrive and nothing writes the block any more."""
        assert self._num_seq_refs[block_id] == 0, f"block {block_id} is still awaited"
        self._end_pull(block_id)
        self._apply(block_id, BlockInput.DISCARD)
        self._free.append(block_id)

    def quarantine(self, block_id: int) -> None:
        """The content will not arrive, but a late write may."""
        assert self._num_seq_refs[block_id] == 0, f"block {block_id} is still awaited"
        self._end_pull(block_id)
        self._apply(block_id, BlockInput.QUARANTINE)
        self.num_quarantined += 1

    def fence(self, block_id: int) -> None:
        """No late write can land any more."""
        self._apply(block_id, BlockInput.FENCE)
        self.num_quarantined -= 1
        self._free.append(block_id)

    # --- invariants ---

    def check_invariants(self) -> None:
        """Raise AssertionError when references, states and lists disagree. O(num_blocks)."""
        blocks: dict[BlockState, set[int]] = {state: set() for state in BlockState}
        for block_id, state in enumerate(self._states):
            blocks[state].add(block_id)
        active, importing = blocks[BlockState.ACTIVE], blocks[BlockState.PULLING]
        used = set(compress(range(self.num_blocks), self._num_seq_refs))
        leased = set(compress(range(self.num_blocks), self._num_lease_refs))
        findable = self.cache.block_ids()
        assert len(set(self._free)) == len(self._free), "a block is free twice"
        _require_same("free", blocks[BlockState.FREE], set(self._free))
        _require_same("cached", blocks[BlockState.CACHED], set(self._lru))
        _require_same("importing", importing, set(self._pull_hashes))
        _require_same("active, or importing for sequences", active | importing & used, used)
        _require_same("held", blocks[BlockState.HELD], leased - active)
        _require_same("cached and findable", blocks[BlockState.CACHED], blocks[BlockState.CACHED] & findable)
        lost = findable - active - blocks[BlockState.HELD] - blocks[BlockState.CACHED]
        assert not lost, f"blocks {sorted(lost)} can be found, but are not valid"
        assert self._pull_contents.keys() <= importing, "content is remembered of what is not imported"

    # --- transitions ---

    def _apply(self, block_id: int, what: BlockInput) -> None:
        self._states[block_id] = TRANSITIONS[self._states[block_id], what]

    def _take(self, how: BlockInput) -> int:
        if not self._free:
            self._evict_oldest()
        block_id = self._free.popleft()
        self._apply(block_id, how)
        self._generations[block_id] += 1
        if how is BlockInput.ALLOCATE:
            self._num_seq_refs[block_id] = 1
        if self.residency is not None:
            self.residency.on_allocated(block_id, self.now)
        return block_id

    def _evict_oldest(self) -> None:
        block_id = next(iter(self._lru))
        self._evict(block_id)
        if self.residency is not None:
            self.residency.on_evicted(block_id, self.now)

    def _evict(self, block_id: int) -> None:
        del self._lru[block_id]
        self.cache.remove(block_id)
        self._apply(block_id, BlockInput.EVICT)
        self._free.append(block_id)

    def _end_pull(self, block_id: int) -> bytes | None:
        self._pull_contents.pop(block_id, None)
        block_hash = self._pull_hashes.pop(block_id)
        if block_hash is not None:
            self.cache.end_pull(block_id, block_hash)
        return block_hash

    def _settle(self, block_id: int) -> None:
        """Move a block on after it lost a reference or became valid."""
        if self._num_seq_refs[block_id] or self._states[block_id] is BlockState.PULLING:
            return
        if self._num_lease_refs[block_id]:
            if self._states[block_id] is BlockState.ACTIVE:
                self._apply(block_id, BlockInput.DROP_TO_LEASE)
        elif self.cache.hash_of(block_id) is not None:
            self._apply(block_id, BlockInput.DROP_TO_CACHE)
            self._lru[block_id] = None
        else:
            self._apply(block_id, BlockInput.DROP_TO_FREE)
            self._free.append(block_id)


def _require_same(what: str, by_state: set[int], by_lists: set[int]) -> None:
    if by_state != by_lists:
        odd = sorted(by_state ^ by_lists)
        raise AssertionError(
            f"blocks {odd} are {what} by their states alone, or by references and lists alone"
        )
