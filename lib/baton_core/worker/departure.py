"""How a worker that is told to end leaves: it takes nothing new, ends what it can, and gives back the rest.

Part of a worker's core. What has not begun is given back at once, what still runs when half of the time is
over then. The rest of the time is for peers that pull blocks from here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from baton_core.worker.controls import OpenWork
from baton_core.worker.standing import Standing
from baton_core.worker.worker_request import WorkerRequest

GIVE_BACK_AFTER: Final = 0.5
"""Share of the time in which requests may still end here."""


class Departure:
    """Of one worker; nothing happens before `begin`."""

    def __init__(self, standing: Standing) -> None:
        self._standing = standing
        self._give_back_at: float | None = None
        """None where there is nothing to give back yet, or any more."""
        self._end_at: float | None = None
        self._is_late = False

    def begin(self, now: float, within_s: float) -> None:
        """Leave within that time; a second call changes nothing."""
        if self._end_at is None:
            self._standing.leave()
            self._give_back_at = now + GIVE_BACK_AFTER * within_s
            self._end_at = now + within_s

    def given_back(self, now: float, requests: Iterable[WorkerRequest]) -> list[WorkerRequest]:
        """Those that are not to go on here: what has not begun, and after half of the time, all."""
        self._is_late = self._end_at is not None and now >= self._end_at
        if self._give_back_at is None:
            return []
        if now < self._give_back_at:
            return [request for request in requests if not _has_begun(request)]
        self._give_back_at = None
        return list(requests)

    def is_over(self, now: float, work: OpenWork) -> bool:
        """Whether the worker may go: nothing is open any more, or the time is over."""
        return self._end_at is not None and (not work or now >= self._end_at)

    def next_deadline(self) -> float | None:
        """When `given_back`, and then `is_over`, is to be asked again."""
        if self._is_late:
            return None
        return self._end_at if self._give_back_at is None else self._give_back_at


def _has_begun(request: WorkerRequest) -> bool:
    """Whether it has blocks, which it would lose."""
    return any(seq.tables for seq in request.sequences.values())
