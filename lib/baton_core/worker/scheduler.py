"""Which tokens of which sequences the next step computes.

One sentence: under a token budget, give every running sequence the tokens it lacks, then admit waiting
ones. A decode is a sequence that lacks one token; a prompt chunk and a recompute lack more and come after it.
Sequences are ordered by priority, then by arrival; without priorities that is first come, first served.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Callable

from baton_core.blocks.block_pool import BlockPool
from baton_core.blocks.block_supply import BlockSupply
from baton_core.blocks.paging import Paging
from baton_core.worker.flights import Flights
from baton_core.worker.plan_builder import PlanBuilder
from baton_core.worker.prefix_frontier import PrefixFrontier
from baton_core.worker.room import Room
from baton_core.worker.scheduler_config import SchedulerConfig
from baton_core.worker.sequence import Sequence, SequenceInput, SequenceState
from baton_core.worker.step_plan import Followed, StepPlan, StepResult


class Scheduler:
    """Preemption takes from whoever is last in order and recomputes later.

    A pinned sequence is never preempted. `schedule` is called only while no step is in flight, and decides
    everything; `schedule_ahead` goes on with what the one step in flight computes, where that leaves nothing
    to decide.
    """

    def __init__(self, pool: BlockPool, paging: Paging, config: SchedulerConfig) -> None:
        self._pool = pool
        self._paging = paging
        self._config = config
        self._supply = BlockSupply(pool, paging, config.max_num_batched_tokens)
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        """In order."""
        self.flights = Flights()
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
        return bool(self.flights)

    @property
    def num_queued_tokens(self) -> int:
        """Tokens to compute before every sequence is at its decode."""
        return sum(seq.num_uncomputed_tokens - 1 for seq in (*self._running, *self._waiting))

    def add(self, seq: Sequence) -> None:
        """Queue a waiting sequence in order."""
        later = [waiting for waiting in self._waiting if _order(waiting) > _order(seq)]
        self._waiting.insert(len(self._waiting) - len(later), seq)

    def remove(self, now: float, seq: Sequence) -> None:
        """End a sequence. Its blocks are released now, or after the last step in flight that it is in."""
        if seq in self.flights:
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
        assert not self.flights, "a step is in flight"
        self._frontier = None
        plan = PlanBuilder(self._config)
        self._make_way(now, plan)
        plan.num_preempted_before = self.num_preemptions
        decodes: list[Sequence] = []
        chunks: list[Sequence] = []
        for seq in self._running:
            (decodes if seq.num_uncomputed_tokens == 1 else chunks).append(seq)
        for seq in decodes:
            self._go_on(now, seq, plan)
        if chunks:
            self._admit_decodes(now, plan)
        for seq in chunks:
            self._admit(now, plan, before=seq.priority)
            self._go_on(now, seq, plan)
        self._admit(now, plan)
        return self._begin(now, plan)

    def schedule_ahead(self, now: float, ends_with_next: Callable[[Sequence], bool]) -> StepPlan | None:
        """Plan the step behind the only one in flight, whose tokens are not known yet.

        It computes these tokens, but for sequences that are over or end with theirs, as `ends_with_next`
        says. None where anything else is to be decided: somebody could be admitted, would take another one's
        place, is in the middle of a prompt, draws by rules, or lacks a block. A sequence that ends all the
        same drains.
        """
        if len(self.flights) != 1 or not self._has_settled():
            return None
        plan, rows = PlanBuilder(self._config), []
        for row, seq in enumerate(self.flights.first.num_tokens):
            if seq.state is SequenceState.DRAINING or ends_with_next(seq):
                continue
            if not self._supply.take_ahead(seq):
                return None
            plan.add_drawn(seq)
            rows.append(row)
        return self._begin(now, plan, Followed(step_id=self._step_id, rows=tuple(rows)))

    def complete(self, now: float, result: StepResult) -> list[tuple[Sequence, int]]:
        """Take back the first step in flight: its sequences that go on, each with the number of its slice."""
        assert result.step_id == self.flights.first.plan.step_id, f"step {result.step_id} is not in flight"
        assert len(result.sampled) == len(self.flights.first.num_tokens), "a slice has no result"
        flight = self.flights.end(now)
        self._supply.release_sources(flight.plan.block_copies)
        alive = []
        for number, (seq, num_tokens) in enumerate(flight.num_tokens.items()):
            if seq.state is SequenceState.DRAINING:
                self._end_drained(now, seq)
            else:
                self._supply.advance(seq, num_tokens)
                alive.append((seq, number))
        return alive

    def fail_step(self, now: float) -> list[Sequence]:
        """End every sequence of the first step in flight, which failed; returns those not over yet."""
        flight = self.flights.end(now)
        self._supply.release_sources(flight.plan.block_copies)
        alive = [seq for seq in flight.num_tokens if seq.state is not SequenceState.DRAINING]
        for seq in alive:
            seq.apply(now, SequenceInput.END_IN_FLIGHT)
        for seq in flight.num_tokens:
            self._end_drained(now, seq)
        return alive

    def check_invariants(self) -> None:
        """Raise AssertionError when steps in flight and sequences that run disagree."""
        self.flights.check_invariants()
        running = set(self._running)
        assert len(running) == len(self._running) <= self._config.max_num_seqs
        assert all(seq in running for seq in self.flights.sequences), "a step computes what does not run"

    def _begin(self, now: float, plan: PlanBuilder, follows: Followed | None = None) -> StepPlan | None:
        if not plan.slices:
            return None
        self._step_id += 1
        begun = StepPlan(
            step_id=self._step_id,
            slices=tuple(plan.slices),
            block_copies=tuple(plan.copies),
            follows=follows,
        )
        self.flights.begin(now, begun, plan.num_tokens)
        return begun

    def _has_settled(self) -> bool:
        """Whether all that run go on as in the step in flight, whatever it draws, and nobody else can."""
        flight = self.flights.first
        if self._waiting:
            has_seat = len(self._running) < self._config.max_num_seqs
            if has_seat or self._waiting[0].priority < self._running[-1].priority:
                return False
        return len(flight.num_tokens) == len(self._running) and all(
            len(piece.samples) == 1 and piece.samples[0].history is None for piece in flight.plan.slices
        )

    def _end_drained(self, now: float, seq: Sequence) -> None:
        """Let go of a sequence that is over, unless a step still computes it."""
        if seq not in self.flights:
            self._running.remove(seq)
            seq.apply(now, SequenceInput.STEP_DONE)
            self._supply.drop(seq)

    def _go_on(self, now: float, seq: Sequence, plan: PlanBuilder) -> None:
        """Give a running sequence what it lacks, unless it was preempted meanwhile or has no place."""
        if not plan.budget or seq.state is not SequenceState.RUNNING:
            return
        num_left = seq.num_uncomputed_tokens
        if num_left == 1 and self._supply.has_slot(seq):
            plan.add(seq, 1, [])
        elif plan.has_place_for(num_left, plan.partial):
            self._schedule_one(now, seq, plan)

    def _schedule_one(self, now: float, seq: Sequence, plan: PlanBuilder) -> None:
        num_tokens = min(plan.chunk(seq.num_uncomputed_tokens), seq.max_chunk_tokens)
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
            running=self._running,
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
        """Admit in order those with a lower priority value than `before`.

        Nobody in a step that preempts, unless it has nothing else to compute. Those that gain by waiting
        for a prefix are passed over, and prompts beyond the limits of long ones.
        """
        if not self._waiting or self._waiting[0].priority >= before:
            return
        has_preempted = self.num_preemptions > plan.num_preempted_before
        if has_preempted and (plan.slices or before < math.inf):
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

    def _admit_decodes(self, now: float, plan: PlanBuilder) -> None:
        """Admit those whose prompt was computed elsewhere: like any decode they go before chunks of prompts.

        They pass none that is more important.
        """
        if not self._waiting or self.num_preemptions > plan.num_preempted_before:
            return
        first = self._waiting[0].priority
        for seq in [one for one in self._waiting if one.priority == first and one.tables]:
            if seq.num_uncomputed_tokens > 1:
                continue
            if not plan.budget or len(self._running) >= self._config.max_num_seqs:
                return
            if not self._start(now, seq, plan):
                return
            self._prefixes().add(seq)

    def _start(self, now: float, seq: Sequence, plan: PlanBuilder) -> bool:
        """False when the blocks do not suffice. If nothing runs, later ones that wait give theirs."""
        has_blocks = bool(seq.tables)
        if not has_blocks:
            self._supply.use_prefix(seq)
        num_tokens = min(plan.chunk(seq.num_uncomputed_tokens), seq.max_chunk_tokens)
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
            if seq.params.reads_prefix_cache:
                self._pool.cache.note_lookup(seq.num_given_tokens, seq.num_computed_tokens)
        seq.apply(now, SequenceInput.ADMIT)
        insort(self._running, seq, key=_order)
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
