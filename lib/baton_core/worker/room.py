"""Who gives way so that waiting sequences of higher priority can start."""

from __future__ import annotations

from collections import deque

from baton_core.blocks.block_pool import BlockPool
from baton_core.blocks.block_supply import BlockSupply
from baton_core.worker.plan_builder import PlanBuilder
from baton_core.worker.sequence import Sequence, SequenceState


class Room:
    """Seats and blocks of one step for sequences that come in order; nobody gives way in vain.

    Until `close`, whoever is promised room has its cached prefix: its blocks are nobody else's room.
    """

    def __init__(
        self,
        pool: BlockPool,
        supply: BlockSupply,
        plan: PlanBuilder,
        *,
        running: list[Sequence],
        holders: list[Sequence],
        num_free_seats: int,
    ) -> None:
        self._pool = pool
        self._supply = supply
        self._plan = plan
        self._num_free_seats = num_free_seats
        self._num_promised_blocks = 0
        self._victims = deque(holders)
        """Those that may give way, in order."""
        self._cut = deque(seq for seq in running if plan.cuts(seq.num_uncomputed_tokens))
        self._partial: list[int] = []
        """Uncomputed tokens of those that are computed in part and are no less important."""
        self._guests: list[Sequence] = []

    def has_victims_for(self, seq: Sequence) -> bool:
        """Whether anybody is less important; if not, nobody is for those that come after it either."""
        while self._victims and self._victims[0].priority <= seq.priority:
            self._victims.popleft()
        return bool(self._victims)

    def has_place_for(self, seq: Sequence) -> bool:
        """Whether it may be computed beside those that are computed in part."""
        while self._cut and self._cut[0].priority <= seq.priority:
            self._partial.append(self._cut.popleft().num_uncomputed_tokens)
        return self._plan.has_place_for(self._supply.num_left(seq), self._partial)

    def promise(self, seq: Sequence) -> bool:
        """Keep a seat and blocks for it; False when it would not fit even if all gave way."""
        if not seq.tables:
            self._supply.use_prefix(seq)
            self._guests.append(seq)
        num_left = seq.num_uncomputed_tokens
        if self._plan.cuts(num_left):
            self._partial.append(num_left)
        self._num_promised_blocks += self._supply.num_needed(seq, self._plan.chunk(num_left))
        self._num_free_seats -= 1
        if self._num_free_seats < 0 and not any(map(_is_running, self._victims)):
            return False
        return self._num_lacking_blocks <= 0 or self._num_lacking_blocks <= self._supply.num_freed(
            self._victims
        )

    def next_victim(self) -> Sequence | None:
        """Who has to be preempted next for what is promised; None when there is room for it."""
        lacks_blocks = self._num_lacking_blocks > 0
        if not lacks_blocks and self._num_free_seats >= 0:
            return None
        victim = next(one for one in reversed(self._victims) if lacks_blocks or _is_running(one))
        self._victims.remove(victim)
        self._num_free_seats += _is_running(victim)
        return victim

    def close(self) -> None:
        """Take back the prefixes of those that do not run yet."""
        for seq in self._guests:
            self._supply.drop(seq)

    @property
    def _num_lacking_blocks(self) -> int:
        return self._num_promised_blocks - self._pool.num_available


def _is_running(seq: Sequence) -> bool:
    return seq.state is SequenceState.RUNNING
