"""The steps that the engine has: one, or two of which the second was planned while the first runs."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from baton_core.worker.sequence import Sequence, SequenceState
from baton_core.worker.step_plan import StepPlan


@dataclass(slots=True, kw_only=True, eq=False)
class Flight:
    """A step that is not back yet."""

    plan: StepPlan
    num_tokens: dict[Sequence, int]
    """Of each sequence, in the order of the plan's slices."""
    started_s: float
    """When it was planned, or when the step before it was back."""


class Flights:
    """Steps in the order in which they come back; false when there are none."""

    def __init__(self) -> None:
        self._flights: deque[Flight] = deque()

    def __len__(self) -> int:
        return len(self._flights)

    def __contains__(self, seq: Sequence) -> bool:
        return any(seq in flight.num_tokens for flight in self._flights)

    @property
    def sequences(self) -> set[Sequence]:
        """All that they compute."""
        return {seq for flight in self._flights for seq in flight.num_tokens}

    @property
    def first(self) -> Flight:
        """The one that comes back next."""
        return self._flights[0]

    def begin(self, now: float, plan: StepPlan, num_tokens: dict[Sequence, int]) -> None:
        self._flights.append(Flight(plan=plan, num_tokens=num_tokens, started_s=now))

    def end(self, now: float) -> Flight:
        """The first one is back, and the engine is at the next."""
        flight = self._flights.popleft()
        if self._flights:
            self.first.started_s = now
        return flight

    def check_invariants(self) -> None:
        """Raise AssertionError when there are too many, or one goes on with what the other has not."""
        assert len(self._flights) <= 2, "more than two steps are in flight"
        states = {seq.state for seq in self.sequences}
        assert states <= {SequenceState.RUNNING, SequenceState.DRAINING}, f"a step computes {states}"
        if len(self._flights) == 2:
            first, second = self._flights
            assert second.num_tokens.keys() <= first.num_tokens.keys(), "a step follows nothing"
