"""Checksums of blocks that ranks hold in parts: sums over heads, which any group of ranks can take together.

The checksum of a block is a sum over its heads of each layer, K and V apart. Each has its number in the whole
block as its weight, so one that lies in another's place changes the sum. Ranks add up what they hold, and
their sums add up to the same number however the block is divided.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import xxhash

from baton_kv.pool_bytes import PoolBytes

_MASK: Final = (1 << 64) - 1


class HeadSums:
    """Adds up the heads of blocks of a pool, which have these `cells` as their numbers in a whole block."""

    def __init__(self, pool: PoolBytes, cells: Sequence[int]) -> None:
        self._pool = pool
        self._weights = 2 * np.array(cells, np.uint64) + np.uint64(1)

    def of(self, block_id: int) -> int:
        """Return the pool's share of a block's checksum: xxh3_64 of each head times its weight, added up."""
        block = self._pool.block(block_id)
        size = len(block) // len(self._weights)
        heads = (xxhash.xxh3_64_intdigest(block[at : at + size]) for at in range(0, len(block), size))
        return int((np.fromiter(heads, np.uint64, len(self._weights)) * self._weights).sum(dtype=np.uint64))


def add_up(shares: Iterable[Sequence[int]]) -> list[int]:
    """Return the checksums of blocks, given each rank's shares of them."""
    return [sum(of_block) & _MASK for of_block in zip(*shares, strict=True)]
