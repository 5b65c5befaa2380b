"""One worker of a fleet: its own reports, and the load that routers have reserved at it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from baton_core.load_reservation import NO_LOAD, LoadReservation, total
from baton_core.model.model_identity import with_weights
from baton_core.sessions.control_messages import ENGINE_MEMORY, EnginePart
from baton_core.sessions.worker_info import Role, WorkerInfo, WorkerLoad
from baton_router.core.fleet.token_queue import TokenQueue
from baton_router.core.placement.placement_cost import CHUNK_TOKENS
from baton_router.core.placement.placement_snapshot import (
    PRIOR_ADAPTER_S,
    PRIOR_SPEED,
    WorkerSpeed,
    WorkerView,
)
from baton_router.core.placement.rate_aging import NEVER_LEARNED, LearnedAt

_PREFILL = Role.PREFILL


@dataclass(slots=True, kw_only=True)
class Member:
    """A worker's status, its reserved load, and its cached view for placement."""

    info: WorkerInfo
    load: WorkerLoad
    num_reserved_tokens: int = 0
    num_reserved_sequences: int = 0
    num_reserved_blocks: int = 0
    """Blocks of prompts that are on their way to it."""
    to_give_up: frozenset[EnginePart] = frozenset()
    """Parts that the other workers gave up: it counts as without them until it reports so itself."""
    peer_load: LoadReservation = NO_LOAD
    """Load reserved by all other routers together."""
    queue: TokenQueue = field(default_factory=TokenQueue)
    broken_sources: frozenset[str] = frozenset()
    """Workers whose blocks do not arrive here."""
    learned_at: LearnedAt = NEVER_LEARNED
    """The times at which it learned its rates."""
    max_model_len: int = field(init=False)
    """Longest sequence that it holds, in tokens: the reported value, or less if its pool is smaller."""
    _num_sequences_since: int = 0
    """Sequences that routers have reserved since the last report, less those that they have released."""
    _given_s: dict[int, float] = field(default_factory=dict)
    """Times at which it was last given a prompt, by the binary digits of the tokens in its longest step."""
    _speed: WorkerSpeed = PRIOR_SPEED
    _num_reservable: int = 0
    _last_view: WorkerView | None = None
    """The view of the last request; None where something has changed since."""

    def __post_init__(self) -> None:
        paging, info = self.info.identity.paging, self.info
        self.max_model_len = paging.max_tokens(info.num_blocks, 1, info.max_model_len)
        self.set_load(self.load)

    @property
    def role(self) -> Role:
        """The role that it prefers now."""
        return self.load.role or self.info.role

    @property
    def num_sequences(self) -> int:
        """Sequences that it has: those that routers have reserved, or more where it has reported more.

        A worker that only computes prompts has none: its queue counts these.
        """
        num_reserved = self.num_reserved_sequences + self.peer_load.num_sequences
        load = self.load
        has_none = (load.role or self.info.role) is _PREFILL
        num_reported = 0 if has_none else load.num_running + load.num_waiting
        return max(num_reserved, num_reported + self._num_sequences_since)

    def is_idle(self, own: LoadReservation = NO_LOAD) -> bool:
        """Return True if it has nothing to do beside `own`, by the reservations and by its last report."""
        is_waiting = self.num_sequences > own.num_sequences or self.queue.num_tokens > own.num_tokens
        return not (is_waiting or self.load.num_running)

    def queue_s(self, own: LoadReservation) -> float:
        """Return the time of the prompt tokens beside `own`, at the speed that placement assumes."""
        return (self.queue.num_tokens - own.num_tokens) / self._speed.prefill_tokens_per_s

    def report(self, now: float, load: WorkerLoad) -> None:
        self.learned_at = self.learned_at.after(now, self.load.rates, load.rates)
        self.set_load(load)
        self._num_sequences_since = 0
        self._given_s.setdefault(_size(CHUNK_TOKENS), now)
        self.queue.report(load.num_queued_tokens)

    def set_load(self, load: WorkerLoad) -> None:
        """Replace the load, without its queue: only a report of the worker changes that."""
        sleeps, pauses = bool(self.to_give_up & ENGINE_MEMORY), EnginePart.SCHEDULING in self.to_give_up
        if sleeps > load.is_asleep or pauses > load.is_paused:
            load = replace(load, is_asleep=sleeps or load.is_asleep, is_paused=pauses or load.is_paused)
        else:
            self.to_give_up = frozenset()
        self.load, self._last_view = load, None

    def set_weights(self, weights: str) -> None:
        """Replace the weights: the worker has switched to others."""
        identity = with_weights(self.info.identity, weights)
        self.info, self._last_view = replace(self.info, identity=identity), None

    def mark_source(self, worker_id: str, *, is_broken: bool) -> None:
        """Record whether blocks of another worker arrive here."""
        others = self.broken_sources - {worker_id}
        self.broken_sources, self._last_view = others | {worker_id} if is_broken else others, None

    def add_load(self, reservation: LoadReservation, sign: int) -> None:
        """Add this router's reservation, or take it back where `sign` is -1."""
        self.num_reserved_tokens += sign * reservation.num_tokens
        self.num_reserved_sequences += sign * reservation.num_sequences
        self.num_reserved_blocks += sign * reservation.num_blocks
        self._num_sequences_since += sign * reservation.num_sequences
        self.queue.change(sign * reservation.num_tokens)
        self._last_view = None

    def set_peer_load(self, reservations: Iterable[LoadReservation]) -> None:
        """Replace the load of the other routers."""
        before, self.peer_load = self.peer_load, total(self.info.worker_id, reservations)
        self.queue.change(self.peer_load.num_tokens - before.num_tokens)
        self._num_sequences_since += self.peer_load.num_sequences - before.num_sequences
        self._last_view = None

    @property
    def num_reservable_blocks(self) -> int:
        """Blocks that one more reservation may take: half of the pool, or all of it for a single one.

        A worker that computes prompts at the same time gives no more than half, so that no two workers wait
        for each other's blocks.
        """
        num_available = self.load.num_available_blocks
        num_reserved = self.num_reserved_blocks + self.peer_load.num_blocks
        num_tokens = self.num_reserved_tokens + self.peer_load.num_tokens
        if not num_reserved and not (num_tokens and self.role.can_prefill):
            return num_available
        return min(num_available, self.info.num_blocks // 2 - num_reserved)

    def give_prompt(self, now: float, num_tokens: int) -> None:
        """Note that it is given a prompt of which it computes so many tokens."""
        self._given_s[_size(num_tokens)] = now

    def last_given_s(self, num_tokens: int) -> float:
        """Return when it was last given a prompt of about a quarter of these tokens or more.

        Steps of `CHUNK_TOKENS` are the longest ones. The first report counts as such a prompt.
        """
        least = _size(num_tokens) - 2
        return max((at_s for size, at_s in self._given_s.items() if size >= least), default=-math.inf)

    def set_speed(self, speed: WorkerSpeed) -> None:
        """Set the speed that placement assumes."""
        if speed != self._speed:
            self._speed, self._last_view = speed, None

    def view(self, num_cached_tokens: int, num_blocks: int, adapter: str = "") -> WorkerView:
        """Return the worker as seen by a request with this cached prefix, need of blocks and adapter.

        The last view is reused where it still holds: every request needs a view of every worker.
        """
        view = self._last_view
        if view is None:
            view = self._last_view = self._base_view()
        can_reserve = num_blocks <= self._num_reservable
        if view.num_cached_tokens != num_cached_tokens or view.can_reserve is not can_reserve:
            view = self._last_view = view._replace(
                num_cached_tokens=num_cached_tokens, can_reserve=can_reserve
            )
        return view._replace(adapter_s=self._adapter_s(adapter)) if adapter else view

    def _adapter_s(self, digest: str) -> float:
        """Return the time until an adapter is loaded: half of what it takes if that has begun."""
        load = self.load
        if digest in load.adapters:
            return 0.0
        whole_s = load.adapter_load_s or PRIOR_ADAPTER_S
        return whole_s / 2 if digest in load.loading_adapters else whole_s

    def _base_view(self) -> WorkerView:
        """Return the worker as seen by a request without a cached prefix."""
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
            is_paused=load.is_paused,
            is_draining=load.is_draining,
            is_faulty=bool(load.fault),
            num_free_blocks=load.num_available_blocks,
            max_num_seqs=info.max_num_seqs,
            speed=self._speed,
            broken_sources=self.broken_sources,
            max_model_len=self.max_model_len,
            weights=info.identity.weights,
            data_parallel_rank=info.data_parallel_rank,
        )


@dataclass(frozen=True, slots=True, eq=False)
class ReservedLoad:
    """Load reserved at a member. A worker that comes again under its name is another member, without it."""

    member: Member
    reservation: LoadReservation

    def release(self) -> None:
        self.member.add_load(self.reservation, -1)


def _size(num_tokens: int) -> int:
    return min(num_tokens, CHUNK_TOKENS).bit_length()
