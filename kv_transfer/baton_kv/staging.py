"""Reused memory for chunks on their way out: bounded over all consumers, and shared fairly among them."""

from __future__ import annotations

import queue
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Final

from baton_kv.layouts import Blocks
from baton_kv.pull_chunks import CHUNK_BYTES

NUM_BUFFERS: Final = 16
MAX_LENT: Final = 4
"""Buffers of one consumer."""


class Staging:
    """Lends buffers of `CHUNK_BYTES` and takes them back when nobody refers to them any more.

    A consumer may have fewer buffers than are free, so while up to five return none, a sixth finds one; six
    can hold them all, until their connections end. For one thread; but the last reference to a buffer may
    end on any, where `on_return` is called.
    """

    def __init__(self, make_buffer: Callable[[int], Blocks], on_return: Callable[[], None]) -> None:
        self._make_buffer = make_buffer
        self._on_return = on_return
        self._free: list[Blocks] = []
        self._num_made = 0
        self._lent: Counter[bytes] = Counter()
        self._returned: queue.SimpleQueue[tuple[Blocks, bytes]] = queue.SimpleQueue()

    @property
    def num_bytes(self) -> int:
        """Memory taken so far; it is kept."""
        return self._num_made * CHUNK_BYTES

    @property
    def num_lent(self) -> int:
        return self._lent.total()

    def can_lend(self, consumer: bytes) -> bool:
        """True if this consumer gets a buffer now."""
        self._collect()
        return self._lent[consumer] < min(MAX_LENT, NUM_BUFFERS - self.num_lent)

    def lend(self, consumer: bytes, num_bytes: int) -> memoryview:
        """Memory of `num_bytes`, lent until the view and everything made from it are gone.

        Needs `can_lend`.
        """
        buffer = self._free.pop() if self._free else self._make()
        self._lent[consumer] += 1
        lent = buffer[:num_bytes]
        weakref.finalize(lent, self._take_back, buffer, consumer).atexit = False
        return lent.data

    def _make(self) -> Blocks:
        self._num_made += 1
        return self._make_buffer(CHUNK_BYTES)

    def _take_back(self, buffer: Blocks, consumer: bytes) -> None:
        self._returned.put((buffer, consumer))
        self._on_return()

    def _collect(self) -> None:
        while not self._returned.empty():
            buffer, consumer = self._returned.get()
            self._free.append(buffer)
            self._lent[consumer] -= 1
            if not self._lent[consumer]:
                del self._lent[consumer]
