"""Steps that fail and logits that are not finite: how many there were, and when a worker pauses because of
them.

A single one may be a request's doing, so it ends that request alone. Several in a row, with no step in
between that gives a token, are the worker's: it takes no requests for a while, then tries again, and each
further failure doubles the pause.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from baton_core.worker.step_plan import StepResult
from baton_worker.core.worker_status import WorkerStatus

MAX_IN_A_ROW: Final = 3
"""Steps without a token that fail, or break sequences, before the worker pauses."""
FIRST_PAUSE_S: Final = 10.0
MAX_PAUSE_S: Final = 300.0
MAX_TEXT: Final = 300
"""Characters of a reason, which each heartbeat carries."""


class StepHealth:
    """Told of each step that is over; keeps `WorkerStatus.failing`.

    Args:
        pauses: whether the worker takes no requests after failures; else they are only counted.
    """

    def __init__(self, status: WorkerStatus, *, pauses: bool = True) -> None:
        self.num_failed_steps = 0
        """Steps that ended in an error of the engine."""
        self.num_broken_sequences = 0
        """Sequences that ended because the model's logits were not finite."""
        self._status = status
        self._pauses = pauses
        self._num_in_a_row = 0
        self._pause_s = FIRST_PAUSE_S
        self._try_again_at: float | None = None

    def end_step(self, now: float, result: StepResult, numbers: Iterable[int]) -> None:
        """Take what a step gave the sequences that are not over yet, by the numbers of their slices."""
        alive = set(numbers)
        broken = result.broken & alive
        self.num_broken_sequences += len(broken)
        if any(result.sampled[number] for number in alive):
            self._num_in_a_row, self._pause_s = 0, FIRST_PAUSE_S
        elif broken:
            self._count(now, f"sequences end in a row: {result.failures[max(broken)]}")

    def fail_step(self, now: float, message: str) -> None:
        """Take a step that ended in an error of the engine, with it some sequences."""
        self.num_failed_steps += 1
        self._count(now, f"steps fail in a row: {message}")

    def next_deadline(self) -> float | None:
        """The time when `on_deadline` is due."""
        return self._try_again_at

    def on_deadline(self, now: float) -> None:
        """End a pause that is over; the next failure begins a longer one."""
        if self._try_again_at is not None and now >= self._try_again_at:
            self._try_again_at = None
            self._status.failing = ""

    def _count(self, now: float, why: str) -> None:
        self._num_in_a_row += 1
        if self._pauses and self._num_in_a_row >= MAX_IN_A_ROW and self._try_again_at is None:
            self._status.failing = why.splitlines()[0][:MAX_TEXT]
            self._try_again_at = now + self._pause_s
            self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)
