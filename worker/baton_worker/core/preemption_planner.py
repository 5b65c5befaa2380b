"""Chooses the sequences to preempt so that waiting ones of higher priority can start."""

from __future__ import annotations

from collections import deque

from baton_core.blocks.block_pool import BlockPool
from baton_core.worker.sequence import Sequence, SequenceState
from baton_worker.core.block_allocator import BlockAllocator
from baton_worker.core.plan_builder import PlanBuilder


class PreemptionPlanner:
    """Reserves seats and blocks of one step for sequences that come in order; nobody is preempted in vain.

    Until `close` a sequence with a reservation shares its cached prefix, so nobody else counts on its blocks.
    """

    def __init__(
        self,
        pool: BlockPool,
        allocator: BlockAllocator,
        plan: PlanBuilder,
        *,
        running: list[Sequence],
        candidates: list[Sequence],
        num_free_seats: int,
    ) -> None:
        self._pool = pool
        self._allocator = allocator
        self._plan = plan
        self._num_free_seats = num_free_seats
        self._num_reserved_blocks = 0
        self._victims = deque(candidates)
        """Sequences that may be preempted, in order."""
        self._cut = deque(seq for seq in running if plan.cuts(seq.num_uncomputed_tokens))
        self._partial: list[int] = []
        """Uncomputed tokens of those that are computed in part and are no less important."""
        self._with_prefix: list[Sequence] = []

    def has_victims_for(self, seq: Sequence) -> bool:
        """True if anybody is less important; if not, nobody is for those that come after it either."""
        while self._victims and self._victims[0].priority <= seq.priority:
            self._victims.popleft()
        return bool(self._victims)

    def has_place_for(self, seq: Sequence) -> bool:
        """True if it may be computed beside those that are computed in part."""
        while self._cut and self._cut[0].priority <= seq.priority:
            self._partial.append(self._cut.popleft().num_uncomputed_tokens)
        return seq.is_whole or self._plan.has_place_for(self._allocator.num_left(seq), self._partial)

    def reserve(self, seq: Sequence) -> bool:
        """Reserve a seat and blocks for it; False when it would not fit even if all were preempted."""
        if not seq.tables:
            self._allocator.use_prefix(seq)
            self._with_prefix.append(seq)
        num_left = seq.num_uncomputed_tokens
        if not seq.is_whole and self._plan.cuts(num_left):
            self._partial.append(num_left)
        self._num_reserved_blocks += self._allocator.num_needed(seq, self._plan.num_tokens_of(seq))
        self._num_free_seats -= 1
        if self._num_free_seats < 0 and not any(map(_is_running, self._victims)):
            return False
        return self._num_missing_blocks <= 0 or self._num_missing_blocks <= self._allocator.num_freed(
            self._victims
        )

    def next_victim(self) -> Sequence | None:
        """The next sequence to preempt for the reservations; None when they fit."""
        needs_blocks = self._num_missing_blocks > 0
        if not needs_blocks and self._num_free_seats >= 0:
            return None
        victim = next(one for one in reversed(self._victims) if needs_blocks or _is_running(one))
        self._victims.remove(victim)
        self._num_free_seats += _is_running(victim)
        return victim

    def close(self) -> None:
        """Release the prefixes of those that do not run yet."""
        for seq in self._with_prefix:
            self._allocator.drop(seq)

    @property
    def _num_missing_blocks(self) -> int:
        return self._num_reserved_blocks - self._pool.num_available


def _is_running(seq: Sequence) -> bool:
    return seq.state is SequenceState.RUNNING
