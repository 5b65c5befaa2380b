"""Changes of a worker's prefix cache, as routers hear of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheDelta:
    """Block hashes that became findable at the worker, and those that no longer are.

    Numbered from 1 on in each epoch of the worker, so whoever misses one finds out.
    """

    stored: tuple[bytes, ...] = ()
    removed: tuple[bytes, ...] = ()
    number: int = 0
    """Number of the last change in it; a snapshot has that of the last one it contains."""
    is_snapshot: bool = False
    """True if `stored` is all that the worker holds: what was known before is to be forgotten."""
