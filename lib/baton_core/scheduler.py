"""Which tokens of which sequences the next step computes.

One sentence: under a token budget, give every running sequence the tokens it lacks, then admit waiting
ones. A decode is a sequence that lacks one token; a prompt chunk and a recompute lack more. Sequences are
ordered by priority, then by arrival; without priorities that is first come, first served.
"""

from __future__ import annotations

import math
from collections import deque

from baton_core.block_pool import BlockPool
from baton_core.block_supply import BlockSupply
from baton_core.paging import Paging
from baton_core.plan_builder import PlanBuilder
from baton_core.prefix_frontier import PrefixFrontier
from baton_core.room import Room
from baton_core.scheduler_config import SchedulerConfig
from baton_core.sequence import Sequence, SequenceInput, SequenceState
from baton_core.step_plan import StepPlan, StepResult


class Scheduler:
    """Preemption takes from whoever is last in order and recomputes later.

    A pinned sequence is never preempted. One step is in flight at a time: `schedule` is called only between
    steps.
    """

    def __init__(self, pool: BlockPool, paging: Paging, config: SchedulerConfig) -> None:
        self._pool = pool
        self._paging = paging
        self._config = config
        self._supply = BlockSupply(pool, paging, config.max_num_batched_tokens)
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._in_flight: dict[Sequence, int] = {}
        self._copies: tuple[tuple[int, int], ...] = ()
        self._frontier: PrefixFrontier | None = None
        """Of those that run, while a step is planned; None where it has to be built anew."""
        self._step_id = 0
        self.num_preemptions = 0

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def is_step_in_flight(self) -> bool:
        return bool(self._in_flight)

    @property
    def num_queued_tokens(self) -> int:
        """Tokens to compute before every sequence is at its decode."""
        return sum(seq.num_uncomputed_tokens - 1 for seq in (*self._running, *self._waiting))

    def add(self, seq: Sequence) -> None:
        """Queue a waiting sequence in order."""
        later = [waiting for waiting in self._waiting if _order(waiting) > _order(seq)]
        self._waiting.insert(len(self._waiting) - len(later), seq)

    def remove(self, now: float, seq: Sequence) -> None:
        """End a sequence. Its blocks are released now, or after the step in flight if it is in it."""
        if seq in self._in_flight:
            seq.apply(now, SequenceInput.END_IN_FLIGHT)
            return
        if seq in self._running:
            self._running.remove(seq)
        elif seq in self._waiting:
            self._waiting.remove(seq)
        seq.apply(now, SequenceInput.END)
        self._supply.drop(seq)

    def schedule(self, now: float) -> StepPlan | None:
        """Plan one step and take the blocks it needs; None when there is nothing to compute.

        The blocks of the sequences in the plan stay theirs until `complete`, whatever happens meanwhile.
        """
        assert not self._in_flight, "a step is in flight"
        self._frontier = None
        plan = PlanBuilder(self._config)
        self._make_way(now, plan)
        plan.num_preempted_before = self.num_preemptions
        for seq in sorted(self._running, key=lambda seq: (seq.num_uncomputed_tokens > 1, _order(seq))):
            if seq.num_uncomputed_tokens > 1:
                self._admit(now, plan, before=seq.priority)
            has_place = plan.budget and plan.has_place_for(seq.num_uncomputed_tokens, plan.partial)
            if has_place and seq.state is SequenceState.RUNNING:
                self._schedule_one(now, seq, plan)
        self._admit(now, plan)
        if not plan.slices:
            return None
        self._step_id += 1
        self._in_flight = plan.num_tokens
        self._copies = tuple(plan.copies)
        return StepPlan(step_id=self._step_id, slices=tuple(plan.slices), block_copies=self._copies)

    def complete(self, now: float, result: StepResult) -> list[tuple[Sequence, tuple[int, ...]]]:
        """Take back the step in flight: the sequences that go on, each with the tokens drawn for it."""
        assert result.step_id == self._step_id, f"step {result.step_id} is not in flight"
        in_flight, self._in_flight = self._in_flight, {}
        self._supply.release_sources(self._copies)
        self._copies = ()
        alive = []
        for (seq, num_tokens), sampled in zip(in_flight.items(), result.sampled, strict=True):
            if seq.state is SequenceState.DRAINING:
                self._running.remove(seq)
                seq.apply(now, SequenceInput.STEP_DONE)
                self._supply.drop(seq)
            else:
                self._supply.advance(seq, num_tokens)
                alive.append((seq, sampled))
        return alive

    def fail_step(self, now: float) -> list[Sequence]:
        """End every sequence of the step in flight, which cannot be completed; returns those not over yet."""
        in_flight, self._in_flight = self._in_flight, {}
        self._supply.release_sources(self._copies)
        self._copies = ()
        alive = [seq for seq in in_flight if seq.state is not SequenceState.DRAINING]
        for seq in in_flight:
            self._running.remove(seq)
            seq.apply(now, SequenceInput.END if seq in alive else SequenceInput.STEP_DONE)
            self._supply.drop(seq)
        return alive

    def _schedule_one(self, now: float, seq: Sequence, plan: PlanBuilder) -> None:
        num_tokens = plan.chunk(seq.num_uncomputed_tokens)
        while (copies := self._supply.take(seq, num_tokens)) is None:
            victim = self._victim(seq, plan)
            self._preempt(now, victim)
            if victim is seq:
                return
        plan.add(seq, num_tokens, copies)

    def _make_way(self, now: float, plan: PlanBuilder) -> None:
        """Preempt for waiting sequences of higher priority what runs with a lower one, from the last on."""
        if not self._waiting:
            return
        room = Room(
            self._pool,
            self._supply,
            plan,
            running=sorted(self._running, key=_order),
            holders=sorted(self._holders(), key=_order),
            num_free_seats=self._config.max_num_seqs - len(self._running),
        )
        for seq in list(self._waiting):
            if not room.has_victims_for(seq):
                break
            if self._prefixes().is_awaited_by(seq) or not room.has_place_for(seq):
                continue
            if not room.promise(seq):
                break
            while (victim := room.next_victim()) is not None:
                self._preempt(now, victim)
        room.close()

    def _admit(self, now: float, plan: PlanBuilder, before: float = math.inf) -> None:
        """Admit in order those with a lower priority value than `before`; nobody in a step that preempts.

        Those that gain by waiting for a prefix are passed over, and prompts beyond the limits of long ones.
        """
        if not self._waiting or self._waiting[0].priority >= before:
            return
        if plan.slices and self.num_preemptions > plan.num_preempted_before:
            return
        for seq in list(self._waiting):
            if seq.priority >= before or not plan.budget or len(self._running) >= self._config.max_num_seqs:
                return
            if self._prefixes().is_awaited_by(seq):
                continue
            if not plan.has_place_for(self._supply.num_left(seq), plan.partial):
                continue
            if not self._start(now, seq, plan):
                return
            self._prefixes().add(seq)

    def _start(self, now: float, seq: Sequence, plan: PlanBuilder) -> bool:
        """False when the blocks do not suffice. If nothing runs, later ones that wait give theirs."""
        has_blocks = bool(seq.tables)
        if not has_blocks:
            self._supply.use_prefix(seq)
        num_tokens = plan.chunk(seq.num_uncomputed_tokens)
        while (copies := self._supply.take(seq, num_tokens)) is None:
            victim = self._victim(seq, plan)
            if self._running or victim is seq:
                if not has_blocks:
                    self._supply.drop(seq)
                return False
            self._preempt(now, victim)
        self._waiting.remove(seq)
        if seq.num_cached_tokens is None:
            seq.num_cached_tokens = seq.num_computed_tokens
        seq.apply(now, SequenceInput.ADMIT)
        self._running.append(seq)
        plan.add(seq, num_tokens, copies)
        return True

    def _prefixes(self) -> PrefixFrontier:
        """Which prefixes those that run compute."""
        if self._frontier is None:
            self._frontier = PrefixFrontier(self._supply, self._paging, self._pool.cache)
            for seq in self._running:
                self._frontier.add(seq)
        return self._frontier

    def _victim(self, seq: Sequence, plan: PlanBuilder) -> Sequence:
        """Whoever comes last among `seq` and those that may be preempted and are not in this step."""
        return max([seq, *(one for one in self._holders() if one not in plan.num_tokens)], key=_order)

    def _holders(self) -> list[Sequence]:
        """Those that hold blocks and may be preempted."""
        waiting = [one for one in self._waiting if one.tables]
        return waiting + [one for one in self._running if not one.is_pinned]

    def _preempt(self, now: float, seq: Sequence) -> None:
        self.num_preemptions += 1
        if seq in self._running:
            self._running.remove(seq)
            self._frontier = None
            self._supply.drop(seq)
            seq.apply(now, SequenceInput.PREEMPT)
            self.add(seq)
        else:
            self._supply.drop(seq)


def _order(seq: Sequence) -> tuple[int, float, str, int]:
    return (seq.priority, seq.arrival_s, seq.seq_id.request_id, seq.seq_id.index)
