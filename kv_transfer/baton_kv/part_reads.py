"""Parts of blocks: what one pool reads of another that holds other layers or heads of the same cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from baton_core.kv_layout.kv_spec import KVSpec
from baton_core.ranks.transfer_plan import ByteRange
from baton_kv.layouts import Blocks
from baton_kv.pool_bytes import PoolBytes


@dataclass(frozen=True, slots=True)
class PartRead:
    """The parts of each block of a peer's pool that are read."""

    spec: KVSpec
    """Spec of the peer's pool, in the layout of the local one."""
    ranges: tuple[ByteRange, ...]
    """Ascending at both ends."""

    @property
    def num_bytes(self) -> int:
        """Bytes that are read of a block."""
        return sum(one.num_bytes for one in self.ranges)

    def is_whole(self, block_bytes: int) -> bool:
        """True if blocks of the peer are read as they lie there, to be blocks of so many bytes here."""
        return self.spec.block_bytes == block_bytes and self.ranges == (ByteRange(0, 0, block_bytes),)

    @property
    def sources(self) -> tuple[tuple[int, int], ...]:
        """First byte and end of each range at the peer."""
        return tuple((one.source, one.source + one.num_bytes) for one in self.ranges)

    @property
    def targets(self) -> list[slice]:
        """The place of each range here."""
        return [slice(one.target, one.target + one.num_bytes) for one in self.ranges]


class PoolPart(PoolBytes):
    """The same ranges of each block of a pool, laid end to end, as if they were its blocks."""

    def __init__(self, pool: PoolBytes, ranges: Sequence[slice]) -> None:
        self._pool = pool
        self._ranges = ranges
        self.is_in_place = pool.is_in_place
        self.block_bytes = sum(one.stop - one.start for one in ranges)

    def __len__(self) -> int:
        return len(self._pool)

    def read(self, block_ids: Sequence[int], columns: slice, out: Blocks) -> None:
        for place, piece in self._cut(columns):
            self._pool.read(block_ids, piece, out[:, place])

    def view(self, block_ids: Sequence[int], columns: slice) -> list[memoryview]:
        if self.is_in_place:
            pieces = [piece for _, piece in self._cut(columns)]
            return [self._pool.view([block_id], piece)[0] for block_id in block_ids for piece in pieces]
        return super().view(block_ids, columns)

    def write(self, block_ids: Sequence[int], columns: slice, rows: Blocks) -> None:
        for place, piece in self._cut(columns):
            self._pool.write(block_ids, piece, np.ascontiguousarray(rows[:, place]))

    def make_buffer(self, num_bytes: int) -> Blocks:
        return self._pool.make_buffer(num_bytes)

    def _cut(self, columns: slice) -> Iterator[tuple[slice, slice]]:
        """Cut these bytes where ranges meet: each piece's place among them, and in a block of the pool."""
        start = 0
        for one in self._ranges:
            size = one.stop - one.start
            first, end = max(columns.start, start), min(columns.stop, start + size)
            if first < end:
                offset = one.start - start
                yield slice(first - columns.start, end - columns.start), slice(first + offset, end + offset)
            start += size
