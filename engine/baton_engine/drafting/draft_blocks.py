"""The KV blocks of what drafts: each is free or of one sequence."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from baton_core.kv_layout.kv_spec import KVSpec
from baton_core.worker.step_plan import SeqId


class DraftBlocks:
    """Blocks by sequence; those that were drafted for longest ago lose theirs first.

    Args:
        spec: the shape of a block.
        num_blocks: of the pool, which nobody else uses.
        known: what the owner knows of each sequence with blocks; it goes with them.
    """

    def __init__(self, spec: KVSpec, num_blocks: int, known: dict[SeqId, Any]) -> None:
        self._spec = spec
        self._known = known
        self._free = list(range(num_blocks))
        self._tables: OrderedDict[SeqId, list[list[int]]] = OrderedDict()
        """Blocks for each KV group; the sequence that was drafted for last comes last."""
        self._current: set[SeqId] = set()
        """The sequences of the step: they keep their blocks."""

    def begin_step(self) -> None:
        """From now on every sequence may lose its blocks, until it reserves some."""
        self._current.clear()

    def reserve(self, seq_id: SeqId, num_tokens: int) -> bool:
        """Give a sequence the blocks of so many tokens, at worst those of the one that waits longest.

        Returns whether it has them.
        """
        tables = self._tables.setdefault(seq_id, [[] for _ in self._spec.groups])
        self._tables.move_to_end(seq_id)
        self._current.add(seq_id)
        num_blocks = -(-num_tokens // self._spec.block_size)
        num_lacking = sum(max(0, num_blocks - len(table)) for table in tables)
        while len(self._free) < num_lacking:
            oldest = next(iter(self._tables))
            if oldest in self._current:
                return False
            self.drop(oldest)
        for table in tables:
            while len(table) < num_blocks:
                table.append(self._free.pop())
        return True

    def tables(self, seq_id: SeqId, num_tokens: int) -> tuple[tuple[int, ...], ...]:
        """Return a sequence's block tables up to the block of token `num_tokens - 1`."""
        num_blocks = -(-num_tokens // self._spec.block_size)
        return tuple(tuple(table[:num_blocks]) for table in self._tables[seq_id])

    def drop(self, seq_id: SeqId) -> None:
        """Take back the blocks of a sequence, if it has some, and forget it."""
        self._known.pop(seq_id, None)
        for table in self._tables.pop(seq_id, ()):
            self._free += table

    def check_invariants(self, num_blocks: int) -> None:
        """Raise AssertionError unless each of `num_blocks` blocks is free or of one sequence."""
        used = [block for tables in self._tables.values() for table in tables for block in table]
        assert sorted(used + self._free) == list(range(num_blocks)), "a block has no owner, or two"
