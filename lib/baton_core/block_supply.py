"""Gives sequences their blocks as they go on, and takes back what they no longer need."""

from __future__ import annotations

from baton_core.block_pool import BlockPool
from baton_core.paging import Paging
from baton_core.sequence import Sequence


class BlockSupply:
    """Fills the block tables of scheduled sequences from the pool, in chunks of at most `max_chunk` tokens.

    A pinned sequence gets the blocks of its whole prompt at once; of groups with a window it gets as many as
    it ever needs at a time, and goes on with those it gives back.
    """

    def __init__(self, pool: BlockPool, paging: Paging, max_chunk: int) -> None:
        self._pool = pool
        self._paging = paging
        self._max_chunk = max_chunk

    def use_prefix(self, seq: Sequence) -> None:
        """Share the cached blocks of its prefix; at least one token is left to compute."""
        cache, paging = self._pool.cache, self._paging
        hashes = [seq.hashes(group) for group in range(len(paging.windows))]
        limit = (seq.num_tokens - 1) // paging.block_size
        length = paging.longest_prefix(
            limit, lambda group, index: cache.find(hashes[group][index]) is not None
        )
        seq.num_computed_tokens = length * paging.block_size
        for group, addresses in enumerate(hashes):
            first = paging.first_visible(group, seq.num_computed_tokens)
            seq.tables.fill(group, first, cache.blocks(addresses[first:length]))
        self._pool.share(seq.tables.held())

    def take(self, seq: Sequence, num_tokens: int) -> list[tuple[int, int]] | None:
        """Make the slots of the next `num_tokens` writable; None, with nothing taken, if it cannot be.

        Returns (source, destination) of the blocks that have to be copied first; the sequence's references
        to the sources stay until `release_sources`.
        """
        tail = seq.num_computed_tokens // self._paging.block_size
        shared = [
            table for table in seq.tables if tail < len(table) and not self._pool.is_writable(table[tail])
        ]
        reach = self._reach(seq, num_tokens)
        taken = self._pool.allocate(seq.tables.num_missing(reach) + len(shared))
        if taken is None:
            return None
        copies = [(table[tail], block_id) for table, block_id in zip(shared, taken, strict=False)]
        for table, (_, destination) in zip(shared, copies, strict=True):
            table[tail] = destination
        seq.tables.extend(reach, taken[len(shared) :])
        return copies

    def release_sources(self, copies: tuple[tuple[int, int], ...]) -> None:
        """The copies are made."""
        self._pool.release([source for source, _ in copies])

    def num_needed(self, seq: Sequence, max_tokens: int) -> int:
        """Available blocks that a waiting sequence takes for its next tokens, at most `max_tokens`."""
        if seq.tables:
            return seq.tables.num_missing(self._reach(seq, max_tokens))
        num_available = self._pool.num_available
        self.use_prefix(seq)
        num_shared = num_available - self._pool.num_available
        num_tokens = min(seq.num_uncomputed_tokens, max_tokens)
        num_missing = seq.tables.num_missing(self._reach(seq, num_tokens))
        self.drop(seq)
        return num_shared + num_missing

    def advance(self, seq: Sequence, num_tokens: int) -> None:
        """Count computed tokens, make what became full findable, and give back what no token sees any more.

        What a pinned sequence will give back is findable only then: nobody shares it before, so the blocks
        come back, and the sequence goes on with as many.
        """
        first = seq.num_computed_tokens // self._paging.block_size
        seq.num_computed_tokens += num_tokens
        num_full = seq.num_computed_tokens // self._paging.block_size
        for group, table in enumerate(seq.tables):
            findable = self._paging.first_visible(group, seq.num_prompt_tokens) if seq.is_pinned else 0
            for index in range(max(first, findable), num_full):
                self._pool.publish(table[index], seq.hashes(group)[index])
        left = seq.tables.leave(seq.num_computed_tokens)
        for group, index, block_id in left:
            self._pool.publish(block_id, seq.hashes(group)[index])
        self._pool.release([block_id for _, _, block_id in left])
        if seq.is_pinned:
            reach = self._reach(seq, 0)
            taken = self._pool.allocate(seq.tables.num_missing(reach))
            assert taken is not None, f"{seq.seq_id} gave back fewer blocks than it needs"
            seq.tables.extend(reach, taken)

    def next_findable(self, seq: Sequence) -> int:
        """Index of the first block that `advance` has still to make findable in some group."""
        indices = [seq.num_computed_tokens // self._paging.block_size]
        if seq.is_pinned:
            for group in range(len(self._paging.windows)):
                first = self._paging.first_visible(group, seq.num_computed_tokens)
                if first < self._paging.first_visible(group, seq.num_prompt_tokens):
                    indices.append(first)
        return min(indices)

    def drop(self, seq: Sequence) -> None:
        """Take back everything; what it computed stays findable until it is evicted."""
        self._pool.release(seq.tables.cut(0))
        seq.num_computed_tokens = 0

    def _reach(self, seq: Sequence, num_tokens: int) -> tuple[int, ...]:
        """Entries that its tables need for the next `num_tokens`, or for good if it is pinned."""
        num_computed, num_cached = seq.num_computed_tokens, seq.num_cached_tokens
        if seq.is_pinned:
            return self._paging.reach_ahead(
                seq.num_tokens,
                num_cached_tokens=num_computed if num_cached is None else num_cached,
                num_computed_tokens=num_computed,
                max_chunk=self._max_chunk,
            )
        return (self._paging.num_entries(num_computed + num_tokens),) * len(self._paging.windows)
