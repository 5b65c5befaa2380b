"""Times of decode steps by their number of rows, learned from a worker's own steps."""

from __future__ import annotations

from typing import Final

MEMORY: Final = 0.9
"""Weight that the past keeps with each observation."""
MAX_SURPRISE: Final = 1.5
"""An observation counts as at most so many times what was known: a pause of the machine is no time of a
step, and a change of speed is still followed."""
MAX_AGE: Final = 512
"""Steps after which a time is no longer believed: contexts have grown or ended since."""
MAX_UNSEEN: Final = 32
"""Steps after which that without drafts is seen again: what drafts gain is measured by it."""
FREE_ROWS: Final = 12
"""Guess before anything is known: so many rows cost as much as what a step costs besides its rows."""

_SHORTEST_S: Final = 1e-6
"""A clock may tell no time between two events."""


class _Size:
    """Steps of about as many rows: what they cost, and how many rows they had."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.num_rows = 0.0
        self.last_step = 0
        self._has_begun = False

    def observe(self, num_rows: int, seconds: float, step: int) -> None:
        """The first step pays for what starts lazily, and teaches nothing."""
        if not self.last_step:
            if self._has_begun:
                self.seconds, self.num_rows, self.last_step = seconds, float(num_rows), step
            self._has_begun = True
            return
        seconds = min(seconds, MAX_SURPRISE * self.seconds)
        self.seconds += (1 - MEMORY) * (seconds - self.seconds)
        self.num_rows += (1 - MEMORY) * (num_rows - self.num_rows)
        self.last_step = step


class StepTimes:
    """The time of a step is taken to depend on its rows alone, the tokens of all its sequences.

    Steps are grouped by powers of two; between two groups time grows evenly, and it never falls.
    """

    def __init__(self) -> None:
        self._sizes: dict[int, _Size] = {}
        """By the bits of the number of rows less one: 1, 2, 3 and 4, 5 to 8, …"""
        self._num_steps = 0

    def observe(self, num_rows: int, seconds: float) -> None:
        """A step of so many rows, none of which is of a prompt, has taken so long."""
        self._num_steps += 1
        seconds = max(seconds, _SHORTEST_S)
        self._sizes.setdefault((num_rows - 1).bit_length(), _Size()).observe(
            num_rows, seconds, self._num_steps
        )

    def is_due(self, num_rows: int) -> bool:
        """Return True if a time that others are compared with has not been seen for long, while others were."""
        size = self._sizes.get((num_rows - 1).bit_length())
        return self._num_steps - (size.last_step if size else 0) >= MAX_UNSEEN

    def relative(self, base: int, most: int) -> list[float]:
        """Return the expected times of steps of `base` to `most` rows, in units of the first."""
        points = self._points()
        times = [_between(points, num_rows) for num_rows in range(base, most + 1)]
        return [time / times[0] for time in times]

    def _points(self) -> list[tuple[float, float]]:
        """Return (rows, time) of what is known, by rows; at least one."""
        known = [
            (size.num_rows, size.seconds)
            for _, size in sorted(self._sizes.items())
            if size.last_step and self._num_steps - size.last_step < MAX_AGE
        ]
        points: list[tuple[float, float]] = []
        for num_rows, seconds in known or [(1.0, 1.0)]:
            points.append((num_rows, max(seconds, points[-1][1]) if points else seconds))
        return points


def _between(points: list[tuple[float, float]], num_rows: int) -> float:
    """Interpolate; beyond the first and the last point the guess decides."""
    after = next((place for place, (rows, _) in enumerate(points) if rows >= num_rows), len(points))
    if 0 < after < len(points):
        (low, low_s), (high, high_s) = points[after - 1 : after + 1]
        return low_s + (high_s - low_s) * (num_rows - low) / (high - low)
    rows, seconds = points[min(after, len(points) - 1)]
    return seconds * (FREE_ROWS + num_rows) / (FREE_ROWS + rows)
