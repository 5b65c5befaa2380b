"""One worker of a fleet: what it says of itself, and what routers have given it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from baton_core.routing.charge import NOTHING, Charge, total
from baton_core.routing.placement_snapshot import PRIOR_SPEED, WorkerSpeed, WorkerView
from baton_core.routing.rate_aging import NEVER_LEARNED, LearnedAt
from baton_core.routing.token_queue import TokenQueue
from baton_core.sessions.worker_info import Role, WorkerInfo, WorkerLoad


@dataclass(slots=True, kw_only=True)
class Member:
    """The ledgers count what was given out and not yet taken back: this router's, and those of others."""

    info: WorkerInfo
    load: WorkerLoad
    num_given_tokens: int = 0
    num_given_sequences: int = 0
    num_given_blocks: int = 0
    """Blocks of prompts that are on their way to it."""
    others: Charge = NOTHING
    """Of all other routers together."""
    queue: TokenQueue = field(default_factory=TokenQueue)
    broken_sources: frozenset[str] = frozenset()
    """Workers whose blocks do not arrive here."""
    learned_at: LearnedAt = NEVER_LEARNED
    """Times at which it learned the rates of its load."""
    _speed: WorkerSpeed = PRIOR_SPEED
    _num_reservable: int = 0
    _seen: WorkerView | None = None
    """By the last request; None where something has changed since."""

    @property
    def role(self) -> Role:
        """What it prefers to do now."""
        return self.load.role or self.info.role

    @property
    def num_sequences(self) -> int:
        """Given by all routers."""
        return self.num_given_sequences + self.others.num_sequences

    def report(self, now: float, load: WorkerLoad) -> None:
        self.learned_at = self.learned_at.after(now, self.load.rates, load.rates)
        self.note_standing(load)
        self.queue.report(load.num_queued_tokens)

    def note_standing(self, load: WorkerLoad) -> None:
        """Know all of a load but the queue: that of a report which is yet to come."""
        self.load, self._seen = load, None

    def note_source(self, worker_id: str, *, is_broken: bool) -> None:
        """Know whether blocks of another worker arrive here."""
        others = self.broken_sources - {worker_id}
        self.broken_sources, self._seen = others | {worker_id} if is_broken else others, None

    def give(self, charge: Charge, sign: int) -> None:
        """Count what this router gives, or takes back."""
        self.num_given_tokens += sign * charge.num_tokens
        self.num_given_sequences += sign * charge.num_sequences
        self.num_given_blocks += sign * charge.num_blocks
        self.queue.change(sign * charge.num_tokens)
        self._seen = None

    def note_others(self, charges: Iterable[Charge]) -> None:
        """Count what each other router has given."""
        before, self.others = self.others, total(self.info.worker_id, charges)
        self.queue.change(self.others.num_tokens - before.num_tokens)
        self._seen = None

    @property
    def num_reservable_blocks(self) -> int:
        """Of one more reservation, as the worker's own rule says: half of its pool, or one alone."""
        num_available = self.load.num_available_blocks
        num_reserved = self.num_given_blocks + self.others.num_blocks
        return min(num_available, self.info.num_blocks // 2 - num_reserved) if num_reserved else num_available

    def note_speed(self, speed: WorkerSpeed) -> None:
        """Know what it is taken to do."""
        if speed != self._speed:
            self._speed, self._seen = speed, None

    def view(self, num_cached_tokens: int, num_blocks: int) -> WorkerView:
        """As a request sees it that finds so much of its prompt there and takes so many blocks.

        Most requests see it as the one before did, and a router asks every worker for every request.
        """
        seen = self._seen
        if seen is None:
            seen = self._seen = self._look()
        can_reserve = num_blocks <= self._num_reservable
        if seen.num_cached_tokens != num_cached_tokens or seen.can_reserve is not can_reserve:
            seen = self._seen = seen._replace(num_cached_tokens=num_cached_tokens, can_reserve=can_reserve)
        return seen

    def _look(self) -> WorkerView:
        """As a request sees it that finds nothing there."""
        load, info = self.load, self.info
        self._num_reservable = self.num_reservable_blocks
        return WorkerView(
            worker_id=info.worker_id,
            role=self.role,
            num_cached_tokens=0,
            num_queued_tokens=self.queue.num_tokens,
            num_sequences=self.num_sequences,
            can_reserve=True,
            is_asleep=load.is_asleep,
            is_draining=load.is_draining or bool(load.fault),
            num_free_blocks=load.num_available_blocks,
            max_num_seqs=info.max_num_seqs,
            speed=self._speed,
            broken_sources=self.broken_sources,
        )
