"""Has a worker's core checked while it has nothing to compute: a worker that is wrong about a block says so.

Used on the worker's loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from baton_worker.core.worker_core import WorkerCore

_EVERY_S: Final = 5.0
_MAX_SHARE: Final = 0.01
"""Maximum share of the time that checks take: a large pool is checked less often."""
_MAX_TEXT: Final = 300
_log = logging.getLogger(__name__)


class SelfCheck:
    """Checks once after something has changed, and never again after it has found a fault.

    Args:
        time: the loop's clock.
    """

    def __init__(self, core: WorkerCore, time: Callable[[], float]) -> None:
        self._core = core
        self._time = time
        self._due_s: float | None = None
        self._not_before_s = time() + _EVERY_S

    def note(self) -> None:
        """Something has changed."""
        if self._due_s is None and not self._core.controls.status.damage:
            self._due_s = max(self._time(), self._not_before_s)

    def next_deadline(self) -> float | None:
        """The time when `evaluate` is due; None while a step computes, whose end is told."""
        return None if self._core.scheduler.in_flight else self._due_s

    def evaluate(self) -> None:
        """Check if it is due and no step computes; a fault ends the taking of requests."""
        began_s = self._time()
        if self._due_s is None or began_s < self._due_s or self._core.scheduler.in_flight:
            return
        try:
            self._core.check_invariants()
        except Exception as error:
            fault = f"{type(error).__name__}: {error}"[:_MAX_TEXT]
            _log.exception(
                "this worker has lost track of its blocks or requests and takes no more: %s", fault
            )
            self._core.controls.status.damage = fault
        ended_s = self._time()
        self._due_s = None
        self._not_before_s = ended_s + max(_EVERY_S, (ended_s - began_s) / _MAX_SHARE)
