"""Settings of the C library's allocator, for processes whose clients decide how large allocations are."""

from __future__ import annotations

import ctypes
from typing import Final

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8
_SETTINGS: Final = {_MMAP_THRESHOLD: 1 << 20, _TRIM_THRESHOLD: 16 << 20, _ARENA_MAX: 2}
"""Bytes from which an allocation has a mapping of its own, unused bytes at the end of the heap that are kept,
and heaps of the process.

Source: glibc's mallopt(3). By default the first of these grows to 32 MiB with what is freed, and every thread
may have a heap: then one small object keeps all that was freed below it.
"""


def return_freed_memory() -> bool:
    """Have large allocations returned to the system as soon as they are freed; to be called before threads
    start.

    Returns False where the C library has no such settings.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # of glibc
    return mallopt is not None and all(mallopt(name, value) for name, value in _SETTINGS.items())
