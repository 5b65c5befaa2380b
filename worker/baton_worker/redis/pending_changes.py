"""The cache changes that a worker has yet to write to Redis. Pure: no clock, no I/O."""

from __future__ import annotations

from typing import Final

from baton_core.kv_events.cache_delta import CacheDelta

MAX_PENDING: Final = 4096
"""Hashes that one write may change; beyond, the whole set is republished."""


class PendingChanges:
    """Gathers changes while a write is in flight, with writes numbered anew; the first one is a snapshot."""

    def __init__(self, max_pending: int = MAX_PENDING) -> None:
        self._max_pending = max_pending
        self._held: set[bytes] = set()
        self._pending: dict[bytes, bool] = {}
        """Hash to whether it is stored; the last word counts."""
        self._is_snapshot_due = True
        self._unconfirmed: CacheDelta | None = None
        self._number = 0

    @property
    def number(self) -> int:
        """Number of the last write taken."""
        return self._number

    @property
    def num_held(self) -> int:
        """Hashes that the worker can find."""
        return len(self._held)

    @property
    def has_work(self) -> bool:
        return bool(self._is_snapshot_due or self._unconfirmed or self._pending)

    def add(self, delta: CacheDelta) -> None:
        """Note a change of the cache."""
        if delta.is_snapshot:
            self._held.clear()
            self.republish()
        self._held.difference_update(delta.removed)
        self._held.update(delta.stored)
        if self._is_snapshot_due:
            return
        self._pending |= dict.fromkeys(delta.removed, False) | dict.fromkeys(delta.stored, True)
        if len(self._pending) > self._max_pending:
            self.republish()

    def republish(self) -> None:
        """Have everything written again: Redis lacks it, or there is too much to tell one by one."""
        self._is_snapshot_due = True
        self._pending = {}
        self._unconfirmed = None

    def take(self) -> CacheDelta | None:
        """Take the next write: one that was never confirmed comes again, as it was."""
        if self._is_snapshot_due:
            self._is_snapshot_due = False
            self._number += 1
            self._unconfirmed = CacheDelta(number=self._number, stored=tuple(self._held), is_snapshot=True)
        elif self._unconfirmed is None and self._pending:
            self._number += 1
            self._unconfirmed = CacheDelta(
                number=self._number,
                stored=tuple(one for one, is_stored in self._pending.items() if is_stored),
                removed=tuple(one for one, is_stored in self._pending.items() if not is_stored),
            )
            self._pending = {}
        return self._unconfirmed

    def confirm(self) -> None:
        """The write taken last is in Redis."""
        self._unconfirmed = None
