"""Graceful shutdown of a worker: it takes nothing new, ends what it can, and returns the rest.

Part of a worker's core. What has not begun is given back at once, what still runs when half of the time is
over then. The rest of the time is for peers that pull blocks from here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from baton_core.worker.worker_events import Drain, Leave
from baton_worker.core.controls import OpenWork
from baton_worker.core.worker_request import WorkerRequest
from baton_worker.core.worker_status import WorkerStatus

RETURN_AFTER: Final = 0.5
"""Share of the time in which requests may still end here."""


class GracefulShutdown:
    """The shutdown of one worker; nothing happens before `begin`."""

    def __init__(self, status: WorkerStatus) -> None:
        self._status = status
        self._return_at: float | None = None
        """None where there is nothing to give back yet, or any more."""
        self._end_at: float | None = None
        self._is_late = False

    def on_event(self, now: float, event: Leave | Drain) -> None:
        """Take no new requests, and begin to leave if that is the event."""
        if isinstance(event, Leave):
            self.begin(now, event.within_s)
        else:
            self._status.is_draining = True

    def begin(self, now: float, within_s: float) -> None:
        """Leave within that time; a second call changes nothing."""
        if self._end_at is None:
            self._status.begin_shutdown()
            self._return_at = now + RETURN_AFTER * within_s
            self._end_at = now + within_s

    def requests_to_return(self, now: float, requests: Iterable[WorkerRequest]) -> list[WorkerRequest]:
        """The requests to return: those that have not begun, and after half of the time, all."""
        self._is_late = self._end_at is not None and now >= self._end_at
        if self._return_at is None:
            return []
        if now < self._return_at:
            return [request for request in requests if not _has_begun(request)]
        self._return_at = None
        return list(requests)

    def is_over(self, now: float, work: OpenWork) -> bool:
        """True if the worker may go: nothing is open any more, or the time is over."""
        return self._end_at is not None and (not work or now >= self._end_at)

    def next_deadline(self) -> float | None:
        """The time to ask `requests_to_return`, and then `is_over`, again."""
        if self._is_late:
            return None
        return self._end_at if self._return_at is None else self._return_at


def _has_begun(request: WorkerRequest) -> bool:
    """True if it has blocks, which it would lose."""
    return any(seq.tables for seq in request.sequences.values())
