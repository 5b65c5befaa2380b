"""Steps that fail and logits that are not finite: how many there were, and when a worker pauses because of
them.

A single one may be a request's doing, so it ends that request alone. Several in a row, with nothing in
between that works, are the worker's: it takes no requests for a while, then tries again, and each further
failure doubles the pause.
"""

from __future__ import annotations

from typing import Final

from baton_core.worker.standing import Standing
from baton_core.worker.step_plan import StepResult

MAX_IN_A_ROW: Final = 3
"""Failed steps, or sequences without finite logits, with nothing that works in between, before the worker
pauses."""
FIRST_PAUSE_S: Final = 10.0
MAX_PAUSE_S: Final = 300.0


class StepHealth:
    """Told of each step that is over; keeps `Standing.failing`."""

    def __init__(self, standing: Standing) -> None:
        self.num_failed_steps = 0
        """Steps that ended in an error of the engine."""
        self.num_broken_sequences = 0
        """Sequences that ended because the model's logits were not finite."""
        self._standing = standing
        self._num_in_a_row = 0
        self._pause_s = FIRST_PAUSE_S
        self._try_again_at: float | None = None

    def end_step(self, now: float, result: StepResult) -> None:
        """Take what a step gave its sequences: tokens, or logits that are not finite."""
        self.num_broken_sequences += len(result.broken)
        if any(result.sampled):
            self._recover()
        elif result.broken:
            reason = result.failures[max(result.broken)]
            self._count(now, len(result.broken), f"sequences end in a row: {reason}")

    def fail_step(self, now: float, message: str) -> None:
        """Take a step that ended in an error of the engine."""
        self.num_failed_steps += 1
        self._count(now, 1, f"steps fail in a row: {message}")

    def next_deadline(self) -> float | None:
        """When `on_deadline` is due."""
        return self._try_again_at

    def on_deadline(self, now: float) -> None:
        """End a pause that is over; the next failure begins a longer one."""
        if self._try_again_at is not None and now >= self._try_again_at:
            self._try_again_at = None
            self._standing.failing = ""

    def _count(self, now: float, number: int, why: str) -> None:
        self._num_in_a_row += number
        if self._num_in_a_row >= MAX_IN_A_ROW and self._try_again_at is None:
            self._standing.failing = f"{why}; it takes requests again in {self._pause_s:.0f} s"
            self._try_again_at = now + self._pause_s
            self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)

    def _recover(self) -> None:
        self._num_in_a_row, self._pause_s = 0, FIRST_PAUSE_S
