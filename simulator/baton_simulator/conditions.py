"""The conditions of a simulated cluster: network, speeds and permanent faults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Protocol

from baton_core.sessions.session import SessionTimings
from baton_core.worker.step_plan import StepPlan
from baton_simulator.network import Weather
from baton_simulator.transports import BACKENDS, Backend


class StepCost(Protocol):
    """Gives the duration of a step."""

    def step_s(self, plan: StepPlan) -> float:
        """Seconds, over 0."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearCost:
    """A time for each step, and more for each of its tokens."""

    base_s: float = 0.002
    per_token_s: float = 0.00005

    def step_s(self, plan: StepPlan) -> float:
        num_tokens = sum(piece.num_scheduled_tokens for piece in plan.slices)
        return self.base_s + self.per_token_s * num_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Faults at workers: probabilities, and a time in seconds."""

    pull_failure: float = 0.0
    """Probability that a piece of a copy fails."""
    grammar_failure: float = 0.0
    max_prepare_s: float = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """The network of a cluster, the speed of its parts, and the faults that last for the whole run."""

    weather: Weather = field(default_factory=Weather)
    faults: Faults = field(default_factory=Faults)
    backend: Backend = BACKENDS["shared_memory"]
    cost: StepCost = field(default_factory=LinearCost)
    timings: SessionTimings = field(default_factory=SessionTimings)
    pull_delays_s: tuple[float, float] = (0.001, 0.02)
    """Shortest and longest time of a copy, without that on the links."""
    num_pieces: int = 1
    """Maximum number of pieces of a copy; other nodes act between them."""


USUAL: Final = Conditions()
