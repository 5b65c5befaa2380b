"""Prefixes that are being computed: a sequence that shares one waits for it instead of computing it too."""

from __future__ import annotations

import math

from baton_core.blocks.prefix_cache import PrefixCache
from baton_core.kv_layout.paging import Paging
from baton_core.worker.sequence import Sequence
from baton_worker.core.block_allocator import BlockAllocator


class InFlightPrefixes:
    """For each sequence that computes its prompt, the block that it makes findable next.

    Whoever has that block in its own prefix has all blocks before it in common with the sequence, too. Nobody
    waits for a sequence of less importance, which may itself wait for a long time.
    """

    def __init__(self, allocator: BlockAllocator, paging: Paging, cache: PrefixCache) -> None:
        self._allocator = allocator
        self._paging = paging
        self._cache = cache
        self._priorities: dict[int, dict[bytes, int]] = {}
        """For each index, the hashes of such blocks, each with the priority of the first that computes it."""

    def add(self, seq: Sequence) -> None:
        """A sequence that runs; a decode makes nothing findable that somebody could wait for."""
        if seq.num_uncomputed_tokens == 1:
            return
        index, hashes = self._allocator.next_findable(seq), seq.hashes()
        if index < len(hashes):
            known = self._priorities.setdefault(index, {})
            known[hashes[index]] = min(seq.priority, known.get(hashes[index], seq.priority))

    def is_computing_prefix_of(self, seq: Sequence) -> bool:
        """True if a sequence without blocks gets more of its prefix by waiting for a step."""
        if seq.tables or not (seq.reads_prefix_cache and self._cache.is_enabled):
            return False
        hashes, limit = seq.hashes(), (seq.num_tokens - 1) // self._paging.block_size
        return any(
            index < limit
            and known.get(hashes[index], math.inf) <= seq.priority
            and not self._is_findable(seq, index)
            for index, known in self._priorities.items()
        )

    def _is_findable(self, seq: Sequence, index: int) -> bool:
        groups = range(len(self._paging.windows))
        return all(self._cache.find(seq.hashes(group)[index]) is not None for group in groups)
