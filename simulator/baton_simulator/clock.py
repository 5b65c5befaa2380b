"""Virtual time: one clock that says what happens next, and the clocks that nodes read, which drift."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

Action = Callable[[], None]


class Clock:
    """True time: actions in the order of their time, then of their making."""

    def __init__(self) -> None:
        self.now = 0.0
        self.num_actions = 0
        """Number of actions that have run."""
        self._actions: list[tuple[float, int, Action]] = []
        self._numbers = count()

    def after(self, delay_s: float, action: Action) -> None:
        heapq.heappush(self._actions, (self.now + delay_s, next(self._numbers), action))

    def run(self, until_s: float) -> None:
        """Run all that is due by `until_s`, and let it be that time."""
        actions = self._actions
        while actions and actions[0][0] <= until_s:
            self.now, _, action = heapq.heappop(actions)
            self.num_actions += 1
            action()
        self.now = until_s


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeClock:
    """The clock of a node: true time at another rate, from another start."""

    rate: float = 1.0
    offset_s: float = 0.0

    def read(self, true_s: float) -> float:
        return self.offset_s + self.rate * true_s

    def when(self, read_s: float) -> float:
        """True time at which the node reads `read_s`."""
        return (read_s - self.offset_s) / self.rate
