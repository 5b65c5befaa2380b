"""The base of routers and workers: a clock, deadlines, and the states alive, frozen and gone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

from baton_simulator.clock import Action, NodeClock
from baton_simulator.interfaces import Surroundings

_TIMER_S: Final = 1e-6
"""Delay of a timer, so that the deadline is over by the node's own clock."""


class Node(ABC):
    """One process, from its start to its end; whoever restarts is another node of the same name."""

    def __init__(self, cluster: Surroundings, name: str, clock: NodeClock) -> None:
        self.cluster = cluster
        self.name = name
        self.clock = clock
        self.is_alive = True
        self.is_frozen = False
        self._backlog: list[Action] = []
        self._wake_at: float | None = None

    @property
    def now(self) -> float:
        """The time by the node's own clock."""
        return self.clock.read(self.cluster.clock.now)

    @abstractmethod
    def deadlines(self) -> list[float | None]:
        """Return the deadlines, by the node's own clock."""

    @abstractmethod
    def on_wake(self) -> None:
        """Some deadline may be over."""

    @abstractmethod
    def crash(self) -> None:
        """Be gone, at once and for ever."""

    def take(self, action: Action) -> None:
        """Let the node do something: later if it is frozen, never if it is gone."""
        if self.is_frozen:
            self._backlog.append(action)
        elif self.is_alive:
            action()

    def after(self, delay_s: float, action: Action) -> None:
        """Let the node do something after some true time."""
        self.cluster.clock.after(delay_s, lambda: self.take(action))

    def freeze(self) -> None:
        """Do nothing, as a process that is stopped; what comes waits."""
        self.is_frozen = True

    def thaw(self) -> None:
        """Go on with what has come meanwhile, in its order."""
        self.is_frozen = False
        backlog, self._backlog = self._backlog, []
        for action in backlog:
            self.take(action)

    def arm(self) -> None:
        """Keep a timer for the earliest deadline."""
        due = min([deadline for deadline in self.deadlines() if deadline is not None], default=None)
        if due is not None and (self._wake_at is None or due < self._wake_at):
            self._wake_at = due
            delay_s = self.clock.when(due) - self.cluster.clock.now
            self.after(max(0.0, delay_s) + _TIMER_S, lambda: self._wake(due))

    def _wake(self, due: float) -> None:
        if self._wake_at == due:
            self._wake_at = None
            self.on_wake()
