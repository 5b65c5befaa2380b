"""Memory for the C++ kernels: packed weights and KV pools lie in huge pages, and large results take turns in
memory that stays mapped.

The C library maps a large allocation anew each time and gives it back when it is freed, so that each result
of a prompt's chunk costs a page fault for every 4 KiB of it. Weights and blocks are read once for each step,
and the smaller the pages, the more of that time goes into finding them.
"""

from __future__ import annotations

import math
import mmap
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import numpy as np
import torch
from torch import Tensor

MIN_BYTES: Final = 1 << 20
"""Smaller results are left to torch."""
MAX_KEPT_BYTES: Final = 256 << 20
"""Bytes of unused memory that stays mapped."""
MAPPED_BYTES: Final = 64 << 20
"""Bytes that are mapped at a time for weights: most of them are smaller than a huge page."""
LINE_BYTES: Final = 64
"""Bytes of a cache line."""


class ResultMemory:
    """Mapped memory for tensors, free once neither tensor nor view is referenced. Any thread may call."""

    def __init__(self) -> None:
        self._free: dict[int, mmap.mmap] = {}
        """By identity, the longest unused first. Only single steps on it: finalizers run between any two."""

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a contiguous tensor of any numbers, which begins at a cache line."""
        num_bytes = math.prod(shape) * dtype.itemsize
        if num_bytes < MIN_BYTES:
            return torch.empty(shape, dtype=dtype)
        mapped = self._take(capacity_for(num_bytes))
        handle = np.frombuffer(mapped, dtype=np.uint8)
        weakref.finalize(handle, self._free_mapping, mapped).atexit = False
        return torch.from_numpy(handle)[:num_bytes].view(dtype).view(shape)

    @property
    def kept_bytes(self) -> int:
        return sum(len(mapped) for _, mapped in self._unused())

    def _take(self, capacity: int) -> mmap.mmap:
        for key, mapped in self._unused():
            if len(mapped) == capacity and self._free.pop(key, None) is not None:
                return mapped
        return mmap.mmap(-1, capacity, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def _free_mapping(self, mapped: mmap.mmap) -> None:
        self._free[id(mapped)] = mapped
        for key, _ in self._unused():
            if self.kept_bytes <= MAX_KEPT_BYTES:
                break
            self._free.pop(key, None)

    def _unused(self) -> list[tuple[int, mmap.mmap]]:
        """Return a copy of what is free, by identity. Python 3.11 may run a finalizer while it is made."""
        while True:
            with suppress(RuntimeError):  # one did, and changed it
                return list(self._free.items())


def capacity_for(num_bytes: int) -> int:
    """Return the next power of two, or the one below and a half: so that results of like sizes take turns.

    Pages that are not written take no memory.
    """
    power = 1 << (num_bytes - 1).bit_length()
    return power // 4 * 3 if num_bytes <= power // 4 * 3 else power


RESULTS: Final = ResultMemory()
"""The result memory of the process."""


class WeightMemory:
    """Mapped memory in huge pages where the system has them, handed out in order.

    A mapping is given back when the last of its tensors is gone. Any thread may call.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mapping: Callable[[], np.ndarray | None] = lambda: None
        """The latest mapping, which only its tensors keep."""
        self._num_taken = 0

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a contiguous tensor of any numbers, which begins at a cache line."""
        place = torch.from_numpy(self._take(math.prod(shape) * dtype.itemsize))
        return place.view(dtype).view(shape).data  # no view, which would keep this memory for good

    def copy(self, weight: Tensor) -> Tensor:
        """Return a contiguous copy of a tensor, which begins at a cache line."""
        return self.empty(tuple(weight.shape), weight.dtype).copy_(weight)

    def _take(self, num_bytes: int) -> np.ndarray:
        num_taken = num_bytes + -num_bytes % LINE_BYTES
        with self._lock:
            mapping = self._mapping()
            if mapping is None or self._num_taken + num_taken > mapping.nbytes:
                mapping = _map_huge_pages(max(num_taken, MAPPED_BYTES))
                self._mapping, self._num_taken = weakref.ref(mapping), 0
            start = self._num_taken
            self._num_taken += num_taken
            return mapping[start : start + num_bytes]


def huge_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return zeros in huge pages where the system has them; a page takes memory once it is written."""
    place = _map_huge_pages(max(1, math.prod(shape) * dtype.itemsize))
    return torch.from_numpy(place)[: math.prod(shape) * dtype.itemsize].view(dtype).view(shape)


def _map_huge_pages(num_bytes: int) -> np.ndarray:
    mapped = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a system without huge pages
        mapped.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapped, dtype=np.uint8)


WEIGHTS: Final = WeightMemory()
"""The memory of the process's packed weights."""
