"""The load that is reserved for requests which an endpoint picker has sent on, until they come."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Final

from baton_core.requests.request_context import NamedWorkers
from baton_router.core.admission.assignment import Assignment

HOLD_S: Final = 0.5
"""Longest time of a reservation: by then a heartbeat shows the request, or another router's load has it."""


class PickHolds:
    """Reservations by the workers that were named. Requests with the same workers are alike."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._holds: dict[NamedWorkers, deque[Assignment]] = {}

    def hold(self, assignment: Assignment) -> NamedWorkers:
        """Keep the load of an assignment reserved for a while; returns the workers that it names."""
        placement = assignment.current
        named = NamedWorkers(prefill=placement.prefill, decode=placement.decode)
        self._holds.setdefault(named, deque()).append(assignment)
        self._loop.call_later(HOLD_S, self._expire, named, assignment)
        return named

    def release(self, named: NamedWorkers | None) -> None:
        """Give back the load of a request with these workers that has come, and reserves load itself."""
        if named is not None and (holds := self._holds.get(named)):
            self._expire(named, holds[0])

    def _expire(self, named: NamedWorkers, assignment: Assignment) -> None:
        assignment.release()
        if (holds := self._holds.get(named)) is None:
            return
        with suppress(ValueError):
            holds.remove(assignment)
        if not holds:
            del self._holds[named]
