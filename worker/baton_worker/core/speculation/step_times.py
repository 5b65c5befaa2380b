"""Times of decode steps by their number of rows, learned from a worker's own steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

MEMORY: Final = 0.9
"""Weight that the past keeps with each observation, once there are some."""
MAX_SURPRISE: Final = 1.5
"""An observation counts as at most so many times what was known: a pause of the machine is no time of a
step, and a change of speed is still followed. What was known counts as at most so many times an observation:
the first ones may pay for what starts lazily, and no pause makes one shorter."""
MIN_SEEN: Final = 8
"""Observations before a time is believed."""
MAX_AGE: Final = 512
"""Steps after which a time is no longer believed: contexts have grown or ended since."""
MAX_UNSEEN: Final = 32
"""Steps after which that without drafts is seen again: what drafts gain is measured by it."""
FREE_ROWS: Final = 12
"""Guess before anything is known: so many rows cost as much as what a step costs besides its rows."""

_SHORTEST_S: Final = 1e-6
"""A clock may tell no time between two events."""


class LearnedTime:
    """A moving average of times."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._num_seen = 0

    @property
    def is_known(self) -> bool:
        return self._num_seen >= MIN_SEEN

    def observe(self, seconds: float) -> None:
        seconds = max(seconds, _SHORTEST_S)
        self._num_seen += 1
        known = min(self.seconds or seconds, MAX_SURPRISE * seconds)
        weight = max(1 - MEMORY, 1 / self._num_seen)
        self.seconds = known + weight * (min(seconds, MAX_SURPRISE * known) - known)


class _Size:
    """Steps of about as many rows: what they cost, and how many rows they had."""

    def __init__(self) -> None:
        self.time = LearnedTime()
        self.num_rows = 0.0
        self.last_step = 0

    def observe(self, num_rows: int, seconds: float, step: int) -> None:
        self.time.observe(seconds)
        self.num_rows += (1 - MEMORY if self.last_step else 1) * (num_rows - self.num_rows)
        self.last_step = step


class StepTimes:
    """The time of a step is taken to depend on its rows alone, the tokens of all its sequences.

    Steps are grouped by powers of two: a step that is just too large for what makes small ones fast is in
    another group. Time never falls with rows.
    """

    def __init__(self) -> None:
        self._sizes: dict[int, _Size] = {}
        """By group: steps of 1 row, of 2, of 3 and 4, of 5 to 8, …"""
        self._num_steps = 0

    def observe(self, num_rows: int, seconds: float) -> None:
        """A step of so many rows, none of which is of a prompt, has taken so long."""
        self._num_steps += 1
        self._sizes.setdefault(_group(num_rows), _Size()).observe(num_rows, seconds, self._num_steps)

    def is_due(self, num_rows: int) -> bool:
        """Return True if a time has not been seen for long, with which others are compared."""
        size = self._sizes.get(_group(num_rows))
        return self._num_steps - (size.last_step if size else 0) >= MAX_UNSEEN

    def relative(self, base: int, most: int) -> list[float]:
        """Return the expected times of steps of `base` to `most` rows, in units of the first."""
        known = {
            group: size
            for group, size in sorted(self._sizes.items())
            if size.time.is_known and self._num_steps - size.last_step < MAX_AGE
        }
        times: list[float] = []
        groups = {_group(num_rows): 0.0 for num_rows in (base, most)}
        for group in range(min(groups), max(groups) + 1):
            groups[group] = _time_per_row(known, group)
        for num_rows in range(base, most + 1):
            time = groups[_group(num_rows)] * (FREE_ROWS + num_rows)
            times.append(max(time, times[-1]) if times else time)
        return [time / times[0] for time in times]


def _group(num_rows: int) -> int:
    return (num_rows - 1).bit_length()


def _time_per_row(known: Mapping[int, _Size], group: int) -> float:
    """Return the time of a group, or of the nearest one that is known, per row with the free ones."""
    if not known:
        return 1.0
    nearest = known[min(known, key=lambda one: (abs(one - group), one))]
    return nearest.time.seconds / (FREE_ROWS + nearest.num_rows)
