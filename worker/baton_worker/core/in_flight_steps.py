"""The steps that the engine has, in the order in which they come back.

Those of a pipeline's stages compute different sequences, or chunks of a prompt one behind the other; one that
was planned ahead continues the step before it.
"""

from __future__ import annotations

from collections import Counter, deque
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
    def unfinished(self) -> dict[Sequence, int]:
        """The sequences that these steps leave with tokens to compute, and how many they compute of each."""
        num_tokens: Counter[Sequence] = Counter()
        for step in self._steps:
            num_tokens.update(step.num_tokens)
        return {
            seq: number
            for seq, number in num_tokens.items()
            if number < seq.num_uncomputed_tokens and seq.state is SequenceState.RUNNING
        }

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
        """Raise AssertionError when one computes what another completes, but for one that follows it."""
        states = {seq.state for seq in self.sequences}
        assert states <= {SequenceState.RUNNING, SequenceState.DRAINING}, f"a step computes {states}"
        completed: set[Sequence] = set()
        followed: set[Sequence] = set()
        for step in self._steps:
            own = set(step.num_tokens)
            if step.plan.follows is None:
                assert not own & completed, "a step computes a sequence that another completes"
            elif followed:
                assert own <= followed, "a step follows nothing"
            pieces = zip(step.num_tokens, step.plan.slices, strict=True)
            completed |= {seq for seq, piece in pieces if piece.samples or piece.pooling}
            followed = own
