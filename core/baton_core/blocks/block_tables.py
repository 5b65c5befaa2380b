"""The block tables of one sequence, one per KV group: which block holds which of its tokens.

Entries of blocks that have left a group's window are `NO_BLOCK`. The tables only name blocks: whoever
changes them takes and gives the references in the pool.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from baton_core.kv_layout.paging import NO_BLOCK, Paging


class BlockTables:
    """Tables of one sequence; false when they have no entries."""

    def __init__(self, paging: Paging) -> None:
        self._paging = paging
        self._tables: list[list[int]] = [[] for _ in paging.windows]
        self._first_held = [0] * len(self._tables)
        """For each group, the entries at its start that are `NO_BLOCK`."""

    def __bool__(self) -> bool:
        return any(self._tables)

    def __getitem__(self, group: int) -> list[int]:
        """A group's table; only this object changes its length."""
        return self._tables[group]

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._tables)

    @property
    def num_entries(self) -> int:
        """Length of the shortest table."""
        return min(map(len, self._tables))

    def held(self) -> list[int]:
        """Every block, by position, then by group: whoever releases from the end frees prefixes last."""
        if len(self._tables) == 1:
            return self._tables[0][self._first_held[0] :]
        return [
            table[index]
            for index in range(min(self._first_held), max(map(len, self._tables)))
            for table, first in zip(self._tables, self._first_held, strict=True)
            if first <= index < len(table)
        ]

    def upto(self, num_tokens: int) -> tuple[tuple[int, ...], ...]:
        """The tables' entries for the first `num_tokens`, as a step sees them."""
        entries = self._paging.num_entries(num_tokens)
        return tuple([tuple(table[:entries]) for table in self._tables])

    def ahead(self, position: int) -> tuple[tuple[int, ...], ...]:
        """The entries that the token at `position` will see, for a step planned before those before it are
        computed: it gives up what they alone see."""
        entries = self._paging.num_entries(position + 1)
        firsts = [self._paging.first_visible(group, position) for group in range(len(self._tables))]
        return tuple(
            [
                (NO_BLOCK,) * first + tuple(table[first:entries])
                for first, table in zip(firsts, self._tables, strict=True)
            ]
        )

    def num_missing(self, reach: Sequence[int]) -> int:
        """Blocks that `extend` takes."""
        return sum(max(0, wanted - len(table)) for wanted, table in zip(reach, self._tables, strict=True))

    def extend(self, reach: Sequence[int], block_ids: Sequence[int]) -> None:
        """Lengthen each group's table to its `reach`, in the order of the groups."""
        assert len(block_ids) == self.num_missing(reach), "as many blocks as are missing"
        blocks = iter(block_ids)
        for wanted, table in zip(reach, self._tables, strict=True):
            table.extend(next(blocks) for _ in range(wanted - len(table)))

    def fill(self, group: int, first: int, block_ids: Sequence[int]) -> None:
        """Let an empty table begin with the block at index `first`."""
        assert not self._tables[group], "the table has entries"
        self._tables[group].extend([NO_BLOCK] * first)
        self._tables[group].extend(block_ids)
        self._first_held[group] = first

    def leave(self, position: int) -> list[tuple[int, int, int]]:
        """Give up the blocks that no token from `position` on sees: their (group, index, block)."""
        left: list[tuple[int, int, int]] = []
        for group, table in enumerate(self._tables):
            first = self._first_held[group]
            now = min(self._paging.first_visible(group, position), len(table))
            if now > first:
                left += [(group, index, table[index]) for index in range(first, now)]
                table[first:now] = [NO_BLOCK] * (now - first)
                self._first_held[group] = now
        return left

    def cut(self, num_entries: int) -> list[int]:
        """Shorten every table to `num_entries`; returns the blocks behind, by position."""
        behind = BlockTables(self._paging)
        for group, table in enumerate(self._tables):
            first = max(self._first_held[group], num_entries)
            behind.fill(group, first, table[first:])
            del table[num_entries:]
            self._first_held[group] = min(self._first_held[group], num_entries)
        return behind.held()

    def copy(self) -> BlockTables:
        """The same entries, for a sibling."""
        copied = BlockTables(self._paging)
        for group, table in enumerate(self._tables):
            first = self._first_held[group]
            copied.fill(group, first, table[first:])
        return copied
