"""Allocates blocks to sequences as they grow, and releases those that they no longer need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from baton_core.blocks.block_pool import BlockPool
from baton_core.kv_layout.paging import Paging
from baton_core.worker.sequence import Sequence


class BlockAllocator:
    """Fills the block tables of scheduled sequences from the pool, in chunks of at most `max_chunk` tokens.

    A pinned sequence gets the blocks of its whole prompt at once; of groups with a window it gets as many as
    it ever needs at a time, and reuses those that it releases.
    """

    def __init__(self, pool: BlockPool, paging: Paging, max_chunk: int) -> None:
        self._pool = pool
        self._paging = paging
        self._max_chunk = max_chunk
        self._is_windowed = any(window is not None for window in paging.windows)

    def num_left(self, seq: Sequence) -> int:
        """Tokens that a waiting sequence computes if it starts now, with what is cached of its prefix."""
        if seq.tables:
            return seq.num_uncomputed_tokens
        return seq.num_tokens - self._cached_length(seq) * self._paging.block_size

    def use_prefix(self, seq: Sequence) -> None:
        """Share the cached blocks of its prefix; at least one token is left to compute."""
        length = self._cached_length(seq)
        seq.num_computed_tokens = length * self._paging.block_size
        for group in range(len(self._paging.windows)):
            first = self._paging.first_visible(group, seq.num_computed_tokens)
            seq.tables.fill(group, first, self._pool.cache.blocks(seq.hashes(group)[first:length]))
        self._pool.share(seq.tables.held())

    def num_needed(self, seq: Sequence, num_tokens: int) -> int:
        """Available blocks that `allocate` takes."""
        return seq.tables.num_missing(self._reach(seq, num_tokens)) + len(self._shared_tails(seq))

    def has_slot(self, seq: Sequence) -> bool:
        """True if the slots of its next token are writable as they are: `allocate` would take nothing."""
        tail = seq.num_computed_tokens // self._paging.block_size
        return not seq.is_pinned and all(
            tail < len(table) and self._pool.is_writable(table[tail]) for table in seq.tables
        )

    def allocate(self, seq: Sequence, num_tokens: int) -> list[tuple[int, int]] | None:
        """Make the slots of the next `num_tokens` writable; None, with nothing taken, if it cannot be.

        Returns (source, destination) of the blocks that have to be copied first; the sequence's references
        to the sources stay until `release_sources`.
        """
        taken = self._pool.allocate(self.num_needed(seq, num_tokens))
        if taken is None:
            return None
        tail, shared = seq.num_computed_tokens // self._paging.block_size, self._shared_tails(seq)
        copies = [(table[tail], block_id) for table, block_id in zip(shared, taken, strict=False)]
        for table, (_, destination) in zip(shared, copies, strict=True):
            table[tail] = destination
        seq.tables.extend(self._reach(seq, num_tokens), taken[len(shared) :])
        return copies

    def allocate_ahead(self, seq: Sequence) -> bool:
        """Make the slot behind the last token writable while a step computes that token; False if it cannot.

        Nothing is copied: the step in flight writes to the block of that slot, or nobody has it yet.
        """
        reach = (self._paging.num_entries(seq.num_tokens + 1),) * len(self._paging.windows)
        taken = self._pool.allocate(seq.tables.num_missing(reach))
        if taken is None:
            return False
        seq.tables.extend(reach, taken)
        return True

    @property
    def keeps_blocks(self) -> bool:
        """True if no sequence gives blocks back as it is computed: later tokens see all before them."""
        return not self._is_windowed

    def release_sources(self, copies: tuple[tuple[int, int], ...]) -> None:
        """The copies are made."""
        self._pool.release([source for source, _ in copies])

    def advance(self, seq: Sequence, num_tokens: int) -> None:
        """Count computed tokens, make what became full findable, and give back what no token sees any more.

        What a pinned sequence will give back is findable only then: nobody shares it before, so the blocks
        come back, and the sequence gets as many.
        """
        first = seq.num_computed_tokens // self._paging.block_size
        seq.num_computed_tokens += num_tokens
        num_full = seq.num_computed_tokens // self._paging.block_size
        if num_full == first and not self._is_windowed:
            return
        for group, table in enumerate(seq.tables):
            findable = self._paging.first_visible(group, seq.num_initial_tokens) if seq.is_pinned else 0
            for index in range(max(first, findable), num_full):
                self._publish(seq, group, index, table[index])
        left = seq.tables.leave(seq.num_computed_tokens)
        for group, index, block_id in left:
            self._publish(seq, group, index, block_id)
        self._pool.release([block_id for _, _, block_id in left])
        if seq.is_pinned:
            reach = self._reach(seq, 0)
            taken = self._pool.allocate(seq.tables.num_missing(reach))
            assert taken is not None, f"{seq.seq_id} gave back fewer blocks than it needs"
            seq.tables.extend(reach, taken)

    def give_back_unused(self, seq: Sequence) -> None:
        """Give back the blocks behind that of its next token."""
        self._pool.release(seq.tables.cut(self._paging.num_entries(seq.num_computed_tokens + 1)))

    def next_findable(self, seq: Sequence) -> int:
        """Index of the first block that `advance` has still to make findable in some group."""
        indices = [seq.num_computed_tokens // self._paging.block_size]
        if seq.is_pinned:
            for group in range(len(self._paging.windows)):
                first = self._paging.first_visible(group, seq.num_computed_tokens)
                if first < self._paging.first_visible(group, seq.num_initial_tokens):
                    indices.append(first)
        return min(indices)

    def num_freed(self, seqs: Iterable[Sequence]) -> int:
        """Blocks that become available if all of these are dropped: those to which nobody else refers."""
        counts = Counter(block_id for seq in seqs for block_id in seq.tables.held())
        return sum(self._pool.num_references(block_id) == count for block_id, count in counts.items())

    def drop(self, seq: Sequence) -> None:
        """Take back everything; what it computed stays findable until it is evicted."""
        self._pool.release(seq.tables.cut(0))
        seq.num_computed_tokens = 0

    def forget(self, seq: Sequence) -> None:
        """Let nobody find a sequence's blocks, those included that it gave back: they hold no right KV."""
        for group in range(len(self._paging.windows)):
            found = (self._pool.cache.find(block_hash) for block_hash in seq.hashes(group))
            self._pool.forget([block_id for block_id in found if block_id is not None])

    def _publish(self, seq: Sequence, group: int, index: int, block_id: int) -> None:
        self._pool.publish(block_id, seq.hashes(group)[index], seq.content(index, group))

    def _cached_length(self, seq: Sequence) -> int:
        """Blocks of its prefix with which a sequence can start."""
        if not seq.reads_prefix_cache:
            return 0
        cache, hashes = self._pool.cache, [seq.hashes(group) for group in range(len(self._paging.windows))]
        limit = (seq.num_tokens - 1) // self._paging.block_size
        return self._paging.longest_prefix(
            limit, lambda group, index: cache.find(hashes[group][index]) is not None
        )

    def _shared_tails(self, seq: Sequence) -> list[list[int]]:
        """The tables whose next slot lies in a block that others read: it is copied before it is written."""
        tail = seq.num_computed_tokens // self._paging.block_size
        return [
            table for table in seq.tables if tail < len(table) and not self._pool.is_writable(table[tail])
        ]

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
