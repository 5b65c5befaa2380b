"""The memory for blocks that arrive in pieces: the local pool, or a buffer beside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from baton_core.kv_layout.kv_spec import KVSpec
from baton_kv.layouts import Blocks, convert_blocks
from baton_kv.pool_bytes import PoolBytes


class Landing:
    """Takes blocks in the layout of `source_spec` into a pool of `spec`: first `place`, in the end `land`."""

    def __init__(self, pool: PoolBytes, spec: KVSpec, source_spec: KVSpec) -> None:
        self._pool = pool
        self._spec = spec
        self._source_spec = source_spec
        self._is_in_place = pool.is_in_place and spec == source_spec
        self._staged: Blocks = np.empty((0, pool.block_bytes), np.uint8)
        self._converted: Blocks = np.empty_like(self._staged)

    @property
    def block_bytes(self) -> int:
        return self._pool.block_bytes

    def place(self, block_ids: Sequence[int], columns: slice) -> Iterable[memoryview]:
        """Return the memory for the same bytes of some blocks; no other blocks may be under way."""
        if self._is_in_place:
            return self._pool.view(block_ids, columns)
        if len(self._staged) < len(block_ids):
            self._staged = np.empty((len(block_ids), self.block_bytes), np.uint8)
        return [row[columns].data for row in self._staged[: len(block_ids)]]

    def rows(self, block_ids: Sequence[int]) -> Sequence[memoryview] | Blocks:
        """These blocks as they came, once they are whole; valid until the next `place`."""
        if self._is_in_place:
            return self._pool.view(block_ids, slice(0, self.block_bytes))
        return self._staged[: len(block_ids)]

    def land(self, block_ids: Sequence[int]) -> None:
        """Write these blocks, which are whole, to the local pool."""
        if self._is_in_place:
            return
        rows = self._staged[: len(block_ids)]
        if self._source_spec != self._spec:
            if len(self._converted) < len(rows):
                self._converted = np.empty_like(self._staged)
            converted = self._converted[: len(rows)]
            convert_blocks(rows, self._source_spec, converted, self._spec)
            rows = converted
        self._pool.write(block_ids, slice(0, self.block_bytes), rows)
