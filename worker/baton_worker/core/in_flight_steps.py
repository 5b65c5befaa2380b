"""The steps that the engine has, in the order in which they come back.

Those of a pipeline's stages compute different sequences; one that was planned ahead continues the step before
it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from baton_core.worker.sequence import Sequence, SequenceState
from baton_core.worker.step_plan import StepPlan


@dataclass(slots=True, kw_only=True, eq=False)
class InFlightStep:
    """A step that is not back yet."""

    plan: StepPlan
    num_tokens: dict[Sequence, int]
    """Tokens of each sequence, in the order of the plan's slices."""
    started_s: float
    """Time when it was planned, or when the step before it ended."""


class InFlightSteps:
    """Steps in the order in which they come back; false when there are none."""

    def __init__(self) -> None:
        self._steps: deque[InFlightStep] = deque()

    def __len__(self) -> int:
        return len(self._steps)

    def __contains__(self, seq: Sequence) -> bool:
        return any(seq in step.num_tokens for step in self._steps)

    @property
    def sequences(self) -> set[Sequence]:
        """The sequences that they compute."""
        return {seq for step in self._steps for seq in step.num_tokens}

    @property
    def first(self) -> InFlightStep:
        """The one that comes back next."""
        return self._steps[0]

    def begin(self, now: float, plan: StepPlan, num_tokens: dict[Sequence, int]) -> None:
        self._steps.append(InFlightStep(plan=plan, num_tokens=num_tokens, started_s=now))

    def end(self, now: float) -> InFlightStep:
        """The first one is back, and the engine is at the next."""
        step = self._steps.popleft()
        if self._steps:
            self.first.started_s = now
        return step

    def check_invariants(self) -> None:
        """Raise AssertionError when two compute a sequence, but for one that follows the other."""
        states = {seq.state for seq in self.sequences}
        assert states <= {SequenceState.RUNNING, SequenceState.DRAINING}, f"a step computes {states}"
        computed: set[Sequence] = set()
        followed: set[Sequence] = set()
        for step in self._steps:
            own = set(step.num_tokens)
            if step.plan.follows is None:
                assert not own & computed, "two steps compute a sequence"
            elif computed:
                assert own <= followed, "a step follows nothing"
            computed |= own
            followed = own
