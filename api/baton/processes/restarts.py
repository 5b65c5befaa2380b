"""The ends of one child process so far, and the backoff before its next start. Pure."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from typing import Final

from baton_service.process import EXIT_BAD_CONFIG

FIRST_WAIT_S: Final = 1.0
MAX_WAIT_S: Final = 60.0
"""The longest wait. A process that ran for so long has served well: its next wait is the shortest again."""

MAX_FIRST_STARTS: Final = 4
"""Starts of each worker before any has served; if all of them fail, the machine cannot run the model."""


class Restarts:
    """The backoff doubles, up to a minute; a process that was stopped on purpose is restarted at once."""

    def __init__(self) -> None:
        self.num_ends = 0
        self.end = ""
        """The last end: `was killed by SIGKILL`; empty before the first."""
        self.reason = ""
        """The error that it ended with; empty where it said nothing."""
        self.first_code: int | None = None
        """Exit code of its first start; None while that runs."""
        self._next_wait_s = FIRST_WAIT_S

    def on_end(self, ran_s: float, code: int, reason: str) -> float:
        """Take an end; returns how long to wait for the next start."""
        self.num_ends += 1
        self.end, self.reason = describe_end(code), reason
        if self.first_code is None:
            self.first_code = code
        if ran_s >= MAX_WAIT_S:
            self._next_wait_s = FIRST_WAIT_S
        if code == 0:
            return 0.0
        wait_s, self._next_wait_s = self._next_wait_s, min(2 * self._next_wait_s, MAX_WAIT_S)
        return wait_s


def is_start_hopeless(restarts: Iterable[Restarts], *, has_served: bool) -> bool:
    """Say whether no worker has ever served, and each has refused its settings or keeps ending."""
    return not has_served and all(
        one.first_code == EXIT_BAD_CONFIG or one.num_ends >= MAX_FIRST_STARTS for one in restarts
    )


def describe_end(code: int) -> str:
    """Say how a process ended, by its exit code, which is negative after a signal."""
    if code == 0:
        return "was told to stop"
    if code > 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
