"""The cost of a step in virtual time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from baton_core.worker.step_plan import StepPlan


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
