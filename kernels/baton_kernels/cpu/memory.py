"""Memory for the results of the C++ kernels: large ones take turns in memory that stays mapped.

The C library maps a large allocation anew each time and gives it back when it is freed, so that each result
of a prompt's chunk costs a page fault for every 4 KiB of it.
"""

from __future__ import annotations

import math
import mmap
import weakref
from typing import Final

import numpy as np
import torch
from torch import Tensor

MIN_BYTES: Final = 1 << 20
"""Smaller results are left to torch."""
MAX_KEPT_BYTES: Final = 256 << 20
"""Bytes of unused memory that stays mapped."""


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
        return sum(map(len, tuple(self._free.values())))

    def _take(self, capacity: int) -> mmap.mmap:
        for key, mapped in tuple(self._free.items()):
            if len(mapped) == capacity and self._free.pop(key, None) is not None:
                return mapped
        return mmap.mmap(-1, capacity, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def _free_mapping(self, mapped: mmap.mmap) -> None:
        self._free[id(mapped)] = mapped
        for key in tuple(self._free):
            if self.kept_bytes <= MAX_KEPT_BYTES:
                break
            self._free.pop(key, None)


def capacity_for(num_bytes: int) -> int:
    """Return the next power of two, or the one below and a half: so that results of like sizes take turns.

    Pages that are not written take no memory.
    """
    power = 1 << (num_bytes - 1).bit_length()
    return power // 4 * 3 if num_bytes <= power // 4 * 3 else power


RESULTS: Final = ResultMemory()
"""The result memory of the process."""
