"""The conditions of a simulated cluster: network, speeds and permanent faults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from baton_core.sessions.session import SessionTimings
from baton_simulator.costs import LinearCost, StepCost
from baton_simulator.network import Weather
from baton_simulator.transports import BACKENDS, Backend


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
