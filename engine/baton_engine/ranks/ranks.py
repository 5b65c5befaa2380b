"""The place of this process among those that compute one model together, and its links to the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from baton_core.ranks.rank_layout import RankPlace
from baton_core.worker.step_plan import StepPlan
from baton_kernels.interface.collectives import Alone, Collectives


def nobody(plan: StepPlan) -> None:
    """Tell nobody of a step: there are no other ranks, or they are told by another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """One rank's view of its group."""

    place: RankPlace = field(default_factory=RankPlace)
    tensor: Collectives = field(default_factory=Alone)
    """The ranks of its stage, each with a part of every layer."""
    pipeline: Collectives = field(default_factory=Alone)
    """The ranks with its part of the other stages' layers; a stage is a rank here."""
    whole: Collectives = field(default_factory=Alone)
    """All ranks of the group."""
    announce: Callable[[StepPlan], None] = nobody
    """Tells the others of each step, at the leader."""

    @property
    def is_capturable(self) -> bool:
        """True if a captured step may hold what its ranks exchange."""
        return self.tensor.is_capturable and self.pipeline.is_capturable

    @property
    def is_alone(self) -> bool:
        return self.place.sizes.num_ranks == 1

    @property
    def has_plain_sums(self) -> bool:
        """True if each sum over inputs is one product, as decode graphs take it."""
        return self.is_alone and not self.place.sizes.is_invariant


ALONE: Final = Ranks()
"""A process that computes a model by itself."""
