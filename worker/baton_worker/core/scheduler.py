"""The scheduler chooses the tokens of each sequence that the next step computes.

One sentence: under a token budget, schedule the uncomputed tokens of every running sequence, then admit
waiting ones. A decode has one uncomputed token; a prompt chunk and a recompute have more and come after it.
Sequences are ordered by priority, then by arrival; without priorities that is first come, first served.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Callable

from baton_core.blocks.block_pool import BlockPool
from baton_core.kv_layout.paging import Paging
from baton_core.requests.attempt_names import is_probe
from baton_core.worker.sequence import Sequence, SequenceInput, SequenceState, order_of
from baton_core.worker.step_plan import Followed, SequenceSlice, StepPlan, StepResult
from baton_worker.core.adapter_seats import AdapterSeats
from baton_worker.core.block_allocator import BlockAllocator
from baton_worker.core.in_flight_prefixes import InFlightPrefixes
from baton_worker.core.in_flight_steps import InFlightSteps
from baton_worker.core.plan_builder import PlanBuilder
from baton_worker.core.preemption_planner import PreemptionPlanner
from baton_worker.core.scheduler_config import SchedulerConfig
from baton_worker.core.speculation.speculation import Speculation


class Scheduler:
    """Preemption takes from whoever is last in order and recomputes later.

    A pinned sequence is never preempted, nor one that a step in flight computes. `schedule` decides
    everything; `schedule_ahead` continues the sequences of the one step in flight, where that leaves nothing
    to decide.

    Args:
        num_stages: steps that `schedule` plans at a time, which divide the sequences evenly among them: while
            one stage of a pipeline computes one, the others compute the others, or prompts' next chunks.
    """

    def __init__(
        self,
        pool: BlockPool,
        paging: Paging,
        config: SchedulerConfig,
        *,
        num_stages: int = 1,
        speculation: Speculation | None = None,
    ) -> None:
        self._pool, self._paging, self._config = pool, paging, config
        self._num_stages = num_stages
        self.speculation = speculation or Speculation(None, 0)
        self._allocator = BlockAllocator(pool, paging, config.max_num_batched_tokens)
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        """In order."""
        self.in_flight = InFlightSteps()
        self._in_flight_prefixes: InFlightPrefixes | None = None
        """Prefixes that running sequences compute, while a step is planned; None: to be rebuilt."""
        self._adapters = AdapterSeats(0.0, self._waiting, self._running, config.max_loras)
        """Judges who may run with an adapter, while a step is planned."""
        self._step_id = 0
        self.num_preemptions = 0

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def not_begun(self) -> list[Sequence]:
        """Waiting sequences of which nothing was computed yet, in order."""
        return [seq for seq in self._waiting if SequenceState.RUNNING not in seq.entered_s]

    @property
    def num_running(self) -> int:
        return len(self._running)

    def adapters(self, *, is_running: bool) -> set[str]:
        """Return the names of the adapters of running, or of waiting, sequences."""
        return {seq.adapter.name for seq in (self._running if is_running else self._waiting) if seq.adapter}

    @property
    def is_full(self) -> bool:
        """True if `schedule` has to wait for a step in flight."""
        return len(self.in_flight) >= self._num_stages

    @property
    def num_queued_tokens(self) -> int:
        """Tokens to compute before every sequence is at its decode."""
        return sum(seq.num_uncomputed_tokens - 1 for seq in (*self._running, *self._waiting))

    def add(self, seq: Sequence) -> None:
        """Queue a waiting sequence in order."""
        insort(self._waiting, seq, key=order_of)

    def remove(self, now: float, seq: Sequence) -> None:
        """End a sequence. Its blocks are released now, or after the last step in flight that it is in."""
        if seq in self.in_flight:
            seq.apply(now, SequenceInput.END_IN_FLIGHT)
            return
        if seq in self._running:
            self._running.remove(seq)
        elif seq in self._waiting:
            self._waiting.remove(seq)
        seq.apply(now, SequenceInput.END)
        self._allocator.drop(seq)
        self.speculation.forget(seq)

    def schedule(self, now: float) -> StepPlan | None:
        """Plan one step and take the blocks it needs; None when there is nothing to compute.

        It computes sequences that no step in flight computes, then chunks behind those in flight. The blocks
        of the sequences in the plan stay theirs until `complete`, whatever happens meanwhile.
        """
        assert not self.is_full, "as many steps are in flight as there are stages"
        self._in_flight_prefixes = None
        plan = PlanBuilder(self._config)
        self._adapters = AdapterSeats(now, self._waiting, self._running, self._config.max_loras)
        self._preempt_for_waiting(now, plan)
        plan.num_preempted_before = self.num_preemptions
        idle = self._idle()
        decodes = [seq for seq in idle if seq.num_uncomputed_tokens == 1]
        chunks = [seq for seq in idle if seq.num_uncomputed_tokens != 1]
        drafts = self.speculation.plan(decodes, plan.budget)
        plan.orders = self.speculation.orders(decodes)
        for seq in decodes:
            self._schedule_running(now, seq, plan, drafts.get(seq, ()))
        if chunks:
            self._admit_decodes(now, plan)
        for seq in chunks:
            self._admit(now, plan, before=seq.priority)
            self._schedule_running(now, seq, plan)
        self._admit(now, plan)
        if self._allocator.keeps_blocks:
            for seq, num_ahead in self.in_flight.unfinished.items():
                self._schedule_running(now, seq, plan, num_ahead=num_ahead)
        return self._begin(now, plan)

    def schedule_ahead(self, now: float, ends_with_next: Callable[[Sequence], bool]) -> StepPlan | None:
        """Plan the step behind the only one in flight, whose tokens are not known yet.

        It computes these tokens, but for sequences that are over or end with theirs, as `ends_with_next`
        says. None where anything else is to be decided: somebody could be admitted, would take another one's
        place, is in the middle of a prompt, has sampling rules, or needs a block that is not there. One
        that ends all the same drains.
        """
        if len(self.in_flight) != 1 or not self._has_settled():
            return None
        plan, rows = PlanBuilder(self._config), []
        for row, seq in enumerate(self.in_flight.first.num_tokens):
            if seq.state is SequenceState.DRAINING or ends_with_next(seq):
                continue
            if not self._allocator.allocate_ahead(seq):
                return None
            plan.add_sampled(seq)
            rows.append(row)
        return self._begin(now, plan, Followed(step_id=self._step_id, rows=tuple(rows)))

    def complete(self, now: float, result: StepResult) -> list[tuple[Sequence, int]]:
        """End the first step in flight; returns the sequences that continue, with their slice numbers."""
        assert result.step_id == self.in_flight.first.plan.step_id, f"step {result.step_id} is not in flight"
        assert len(result.sampled) == len(self.in_flight.first.num_tokens), "a slice has no result"
        step = self.in_flight.end(now)
        self.speculation.end_step(step.plan, now - step.started_s, result.drafting_s)
        self._allocator.release_sources(step.plan.block_copies)
        alive = []
        for number, (seq, num_tokens) in enumerate(step.num_tokens.items()):
            if seq.state is SequenceState.DRAINING:
                self._end_drained(now, seq)
            else:
                self._allocator.advance(seq, num_tokens - step.plan.slices[number].num_drafts)
                if number in result.broken:
                    self._allocator.forget(seq)
                self.speculation.take(seq, number, step.plan, result)
                alive.append((seq, number))
        return alive

    def end_verification(self, seq: Sequence, piece: SequenceSlice) -> None:
        """Count the right drafts of a slice as computed: its sequence has taken them, and one token more.

        Blocks that hold nothing but wrong ones are given back. Without drafts there is nothing to do.
        """
        if not piece.num_drafts:
            return
        num_right = seq.num_uncomputed_tokens - 1
        self.speculation.counts.add(piece.num_drafts, num_right)
        self._allocator.advance(seq, num_right)
        self._allocator.give_back_unused(seq)

    def fail_step(self, now: float) -> list[Sequence]:
        """End every sequence of the first step in flight, which failed; returns those not over yet."""
        step = self.in_flight.end(now)
        self._allocator.release_sources(step.plan.block_copies)
        alive = [seq for seq in step.num_tokens if seq.state is not SequenceState.DRAINING]
        for seq in alive:
            seq.apply(now, SequenceInput.END_IN_FLIGHT)
        for seq in step.num_tokens:
            self._end_drained(now, seq)
        return alive

    def check_invariants(self) -> None:
        """Raise AssertionError when steps in flight and sequences that run disagree."""
        self.in_flight.check_invariants()
        running = set(self._running)
        assert len(running) == len(self._running) <= self._config.max_num_seqs
        assert all(seq in running for seq in self.in_flight.sequences), "a step computes what does not run"
        self.speculation.check_invariants(running | set(self._waiting))

    def _begin(self, now: float, plan: PlanBuilder, follows: Followed | None = None) -> StepPlan | None:
        if not plan.slices:
            return None
        self._step_id += 1
        begun = plan.build(self._step_id, follows, self.speculation.take_ended())
        self.in_flight.begin(now, begun, plan.num_tokens)
        return begun

    def _has_settled(self) -> bool:
        """True if exactly the running sequences continue after the step in flight, whatever it samples."""
        step = self.in_flight.first
        if self._waiting:
            has_seat = len(self._running) < self._config.max_num_seqs
            if has_seat or self._waiting[0].priority < self._running[-1].priority:
                return False
        return len(step.num_tokens) == len(self._running) and all(
            len(piece.samples) == 1 and piece.samples[0].history is None for piece in step.plan.slices
        )

    def _end_drained(self, now: float, seq: Sequence) -> None:
        """Let go of a sequence that is over, unless a step still computes it."""
        if seq not in self.in_flight:
            self._running.remove(seq)
            seq.apply(now, SequenceInput.STEP_DONE)
            self._allocator.drop(seq)
            self.speculation.forget(seq)

    def _schedule_running(
        self, now: float, seq: Sequence, plan: PlanBuilder, draft: tuple[int, ...] = (), num_ahead: int = 0
    ) -> None:
        """Schedule a running sequence, unless it was preempted meanwhile or has no place.

        A draft that would need a block which another one may need is dropped.
        """
        if not plan.budget or seq.state is not SequenceState.RUNNING:
            return
        if len(plan.slices) >= self._share(len(self._running)):
            return
        num_left = seq.num_uncomputed_tokens - num_ahead
        spare = self._pool.num_available - len(self._running) * len(self._paging.windows) if draft else 0
        if draft and self._allocator.num_needed(seq, 1 + len(draft)) <= max(0, spare):
            copies = self._allocator.allocate(seq, 1 + len(draft))
            assert copies is not None, "as many blocks are available"
            plan.add_verified(seq, draft, copies)
        elif num_left == 1 and not num_ahead and self._allocator.has_slot(seq):
            plan.add(seq, 1, [])
        elif plan.has_place_for(num_left, plan.partial):
            self._schedule_one(now, seq, plan, num_ahead)

    def _schedule_one(self, now: float, seq: Sequence, plan: PlanBuilder, num_ahead: int) -> None:
        num_tokens = plan.num_tokens_of(seq, num_ahead)
        while (copies := self._allocator.allocate(seq, num_ahead + num_tokens)) is None:
            victim = self._victim(seq, plan)
            if victim in self.in_flight:
                return  # it waits for the blocks
            self._preempt(now, victim)
            if victim is seq:
                return
        plan.add(seq, num_tokens, copies, num_ahead)

    def _preempt_for_waiting(self, now: float, plan: PlanBuilder) -> None:
        """Preempt sequences of lower priority for waiting ones of higher priority, the last one first."""
        if not self._waiting:
            return
        planner = PreemptionPlanner(
            self._pool,
            self._allocator,
            plan,
            running=self._idle(),
            candidates=sorted(set(self.preemptible()) - self.in_flight.sequences, key=order_of),
            num_free_seats=self._config.max_num_seqs - len(self._running),
        )
        for seq in list(self._waiting):
            if not planner.has_victims_for(seq):
                break
            if not self._adapters.take(seq):
                continue
            if self._prefixes_in_flight().is_computing_prefix_of(seq) or not planner.has_place_for(seq):
                continue
            if not planner.reserve(seq):
                break
            while (victim := planner.next_victim()) is not None:
                self._preempt(now, victim)
        planner.close()

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
            if seq.priority >= before or not self._has_seat(plan):
                return
            if not self._adapters.take(seq) or self._prefixes_in_flight().is_computing_prefix_of(seq):
                continue
            if plan.would_cut(seq):
                return
            if not seq.is_whole and not plan.has_place_for(self._allocator.num_left(seq), plan.partial):
                continue
            if not self._start(now, seq, plan):
                return
            self._prefixes_in_flight().add(seq)

    def _admit_decodes(self, now: float, plan: PlanBuilder) -> None:
        """Admit those whose prompt was computed elsewhere before chunks, but for more important ones."""
        if not self._waiting or self.num_preemptions > plan.num_preempted_before:
            return
        first = self._waiting[0].priority
        for seq in [one for one in self._waiting if one.priority == first and one.tables]:
            if seq.num_uncomputed_tokens > 1 or not self._adapters.take(seq):
                continue
            if not self._has_seat(plan) or not self._start(now, seq, plan):
                return
            self._prefixes_in_flight().add(seq)

    def _has_seat(self, plan: PlanBuilder) -> bool:
        """True if one more may be admitted to this step."""
        max_num_seqs, num_open = self._config.max_num_seqs, len(self._running) + len(self._waiting)
        share = self._share(min(max_num_seqs, num_open))
        return bool(plan.budget) and len(self._running) < max_num_seqs and len(plan.slices) < share

    def _share(self, num_seqs: int) -> int:
        """Return the sequences of one step, if that many are divided among the stages."""
        return -(-num_seqs // self._num_stages)

    def _idle(self) -> list[Sequence]:
        """Return the running sequences that no step in flight computes, in order."""
        computed = self.in_flight.sequences
        return [seq for seq in self._running if seq not in computed]

    def _start(self, now: float, seq: Sequence, plan: PlanBuilder) -> bool:
        """False when the blocks do not suffice. If nothing runs, later ones that wait give theirs."""
        has_blocks = bool(seq.tables)
        if not has_blocks:
            self._allocator.use_prefix(seq)
        num_tokens = plan.num_tokens_of(seq)
        while (copies := self._allocator.allocate(seq, num_tokens)) is None:
            victim = self._victim(seq, plan)
            if self._running or victim is seq:
                if not has_blocks:
                    self._allocator.drop(seq)
                return False
            self._preempt(now, victim)
        self._waiting.remove(seq)
        if seq.num_cached_tokens is None:
            seq.num_cached_tokens = seq.num_computed_tokens
            if seq.reads_prefix_cache and not is_probe(seq.seq_id.request_id):
                self._pool.cache.note_lookup(seq.num_initial_tokens, seq.num_computed_tokens)
        seq.apply(now, SequenceInput.ADMIT)
        insort(self._running, seq, key=order_of)
        plan.add(seq, num_tokens, copies)
        return True

    def _prefixes_in_flight(self) -> InFlightPrefixes:
        """The prefixes that running sequences compute."""
        if self._in_flight_prefixes is None:
            self._in_flight_prefixes = InFlightPrefixes(self._allocator, self._paging, self._pool.cache)
            for seq in self._running:
                self._in_flight_prefixes.add(seq)
        return self._in_flight_prefixes

    def _victim(self, seq: Sequence, plan: PlanBuilder) -> Sequence:
        """Whoever comes last among `seq` and those that may be preempted and are not in this step."""
        return max([seq, *(one for one in self.preemptible() if one not in plan.num_tokens)], key=order_of)

    def preemptible(self) -> list[Sequence]:
        """Sequences that hold blocks and may be preempted, at once or when no step computes them."""
        waiting = [one for one in self._waiting if one.tables]
        return waiting + [one for one in self._running if not one.is_pinned]

    def preempt_all(self, now: float) -> None:
        """Take the blocks of all sequences that may lose them. Not while a step is in flight."""
        for seq in self.preemptible():
            self._preempt(now, seq)

    def _preempt(self, now: float, seq: Sequence) -> None:
        self.num_preemptions += 1
        self._allocator.drop(seq)
        if seq in self._running:
            self._running.remove(seq)
            self._in_flight_prefixes = None
            seq.apply(now, SequenceInput.PREEMPT)
            self.add(seq)
