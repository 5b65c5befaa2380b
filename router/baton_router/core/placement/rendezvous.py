"""Rendezvous hashing: which worker a key prefers, however many workers come and go.

Source: Thaler and Ravishankar, "Using Name-Based Mappings to Increase Hit Rates", 1998.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from typing import Final

_BITS: Final = 64
_MASK: Final = (1 << _BITS) - 1


def preference(key: str, name: str) -> float:
    """Return a number from 0 to 1, below it; the name with the highest is the key's own."""
    return preferences(key)(name)


def preferences(key: str) -> Callable[[str], float]:
    """Return `preference` of one key, for many names: every bit of both digests is spread over all others.

    Source: the finalizer of SplitMix64 (Steele et al., 2014).
    """
    own = _digest(key)

    def of(name: str) -> float:
        value = own ^ _digest(name)
        value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
        value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
        return (value ^ (value >> 31)) / (1 << _BITS)

    return of


def pseudo_random(key: str, count: int) -> int:
    """A number below `count` that only the key decides."""
    return _digest(key) % count


@lru_cache(maxsize=8192)
def _digest(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=_BITS // 8).digest(), "little")
