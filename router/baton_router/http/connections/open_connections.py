"""The connections of an HTTP server by what it costs to end one, so that a full server makes room."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from itertools import islice
from typing import Final, Protocol


class Stage(StrEnum):
    """Progress of a connection."""

    SILENT = "silent"
    """It has sent no byte yet; over TLS its handshake may be under way."""
    READING = "reading"
    """The headers of a request have begun."""
    ANSWERING = "answering"
    """A request is being answered."""
    IDLE = "idle"
    """It was handled and may send another request."""


class Evictable(Protocol):
    """A connection that can be ended for another."""

    @property
    def has_unsent(self) -> bool:
        """True while a part of its last response waits for the client."""
        ...

    def evict(self) -> None:
        """End it at once; `OpenConnections` has forgotten it already."""
        ...


GRACE_S: Final = 1.0
"""Time that a connection may be silent before idle ones outlive it."""
_MAX_SCANNED: Final = 64


class OpenConnections:
    """At most `max_connections`; within a stage the one that came into it first goes first.

    Those that have long been silent are ended first, then idle ones, other silent ones, those without whole
    headers, and last idle ones that have not taken all of their reply. One that is being handled stays.
    """

    def __init__(self, max_connections: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_connections = max_connections
        self._clock = clock
        self._stages: dict[Evictable, Stage] = {}
        self._by_stage: dict[Stage, dict[Evictable, float]] = {stage: {} for stage in Stage}
        """Since when each connection is in its stage."""

    def __len__(self) -> int:
        return len(self._stages)

    def add(self, connection: Evictable) -> bool:
        """Take a connection in, if need be instead of another; False if all are being handled."""
        if len(self) >= self._max_connections and not self.evict_one():
            return False
        self._stages[connection] = Stage.SILENT
        self._by_stage[Stage.SILENT][connection] = self._clock()
        return True

    def move(self, connection: Evictable, stage: Stage) -> None:
        """Note how far a connection has come; one that was removed stays so."""
        if (before := self._stages.get(connection)) is None or before is stage:
            return
        del self._by_stage[before][connection]
        self._stages[connection] = stage
        self._by_stage[stage][connection] = self._clock()

    def remove(self, connection: Evictable) -> None:
        """Forget a connection, if it is known."""
        if (stage := self._stages.pop(connection, None)) is not None:
            del self._by_stage[stage][connection]

    def evict_one(self) -> bool:
        """End the connection whose loss costs least; False if all are being handled."""
        connection = next(self._missed_least(), None)
        if connection is None:
            return False
        self.remove(connection)
        connection.evict()
        return True

    def _missed_least(self) -> Iterator[Evictable]:
        silent, idle = self._by_stage[Stage.SILENT], self._by_stage[Stage.IDLE]
        long_ago_s = self._clock() - GRACE_S
        yield from (one for one, since_s in islice(silent.items(), 1) if since_s <= long_ago_s)
        yield from (one for one in islice(idle, _MAX_SCANNED) if not one.has_unsent)
        yield from silent
        yield from self._by_stage[Stage.READING]
        yield from idle
