"""The scheduler under any order of arrivals, removals and steps, against a memory that remembers contents."""

from __future__ import annotations

from collections import deque
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from baton_core.blocks.block_pool import BlockPool, BlockState
from baton_core.kv_layout.paging import NO_BLOCK, Paging
from baton_core.requests.logprobs import PositionLogprobs
from baton_core.worker.sequence import Sequence, SequenceState
from baton_core.worker.speculative_config import SpeculativeConfig, SpeculativeMethod
from baton_core.worker.step_plan import SAMPLED, SequenceSlice, StepPlan, StepResult
from baton_worker.core.scheduler import Scheduler
from baton_worker.core.scheduler_config import SchedulerConfig
from baton_worker.core.speculation.speculation import Speculation
from tests.builders import BLOCK_SIZE, make_logprobs, make_sequence
from tests.property.slot_memory import Memory, content

priorities = st.sampled_from([0, 0, 0, -1, 3])
wanted_prompt_logprobs = st.sampled_from([None, None, 0])
MAX_TOKENS = 24
"""Prompt and output: any one sequence fits the pool."""
PAGINGS = [Paging(block_size=BLOCK_SIZE, windows=w) for w in [(None,), (6,), (None, 5), (None, 1, 9)]]


SPECULATIVE = SpeculativeConfig(method=SpeculativeMethod.NGRAM, num_speculative_tokens=3)


def visible(window: int | None, position: int) -> range:
    """Return the tokens that the one at `position` sees before itself."""
    return range(0 if window is None else max(0, position - window + 1), position)


def blocks_of(piece: SequenceSlice) -> set[int]:
    return {block_id for table in piece.block_tables for block_id in table} - {NO_BLOCK}


class OftenRight:
    """Drafts what `_execute` draws, but for each third position."""

    def propose(self, token_ids: list[int], num_tokens: int) -> tuple[int, ...]:
        start = len(token_ids)
        return tuple(700 + at if at % 3 else 1 for at in range(start, start + num_tokens))


class SchedulerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.memory = Memory()
        self.alive: dict[Sequence, int] = {}
        """Every sequence that has not ended, with the output tokens it wants."""
        self.plans: deque[StepPlan] = deque()
        """Steps in flight."""
        self.results: deque[StepResult] = deque()
        """Results of the first steps, which the engine has computed."""
        self.last = StepResult(step_id=0, sampled=())
        """Result of the step that the engine computed last."""
        self.foreign: list[int] = []
        self.told: dict[Sequence, list[PositionLogprobs]] = {}
        """Log-probabilities of the prompt of each sequence."""
        self.clock = 0.0

    @initialize(
        paging=st.sampled_from(PAGINGS),
        budget=st.integers(1, 12),
        max_num_seqs=st.integers(1, 4),
        num_partial=st.integers(1, 3),
        threshold=st.sampled_from([0, 0, 2, 7]),
        plans_ahead=st.booleans(),
        num_stages=st.sampled_from([1, 1, 2, 3]),
        speculates=st.booleans(),
    )
    def configure(
        self,
        paging: Paging,
        budget: int,
        max_num_seqs: int,
        num_partial: int,
        threshold: int,
        plans_ahead: bool,
        num_stages: int,
        speculates: bool,
    ) -> None:
        config = SchedulerConfig(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            max_num_partial_prefills=num_partial,
            long_prefill_token_threshold=threshold,
        )
        self._configure(paging, config, num_stages, plans_ahead=plans_ahead, speculates=speculates)

    def _configure(
        self,
        paging: Paging,
        config: SchedulerConfig,
        num_stages: int,
        *,
        plans_ahead: bool = False,
        speculates: bool = False,
    ) -> None:
        self.paging, self.plans_ahead, self.num_stages = paging, plans_ahead, num_stages
        self.budget, self.num_partial = config.max_num_batched_tokens, config.max_num_partial_prefills
        self.threshold = config.long_prefill_token_threshold
        self.pool = BlockPool(paging.max_blocks(MAX_TOKENS, self.budget) + 4)
        drafts = SPECULATIVE if speculates else None
        speculation = Speculation(drafts, MAX_TOKENS + 4, lambda seq: OftenRight())
        self.scheduler = Scheduler(self.pool, paging, config, num_stages=num_stages, speculation=speculation)

    # --- inputs ---

    @rule(
        prompt=st.integers(1, 14),
        family=st.integers(0, 2),
        num_outputs=st.integers(1, 10),
        priority=priorities,
        prompt_logprobs=wanted_prompt_logprobs,
    )
    def arrive(
        self, prompt: int, family: int, num_outputs: int, priority: int, prompt_logprobs: int | None
    ) -> None:
        changes = {"priority": priority, "prompt_logprobs": prompt_logprobs}
        self.scheduler.add(self._new_sequence(prompt, family, num_outputs, **changes))

    @rule(prompt=st.integers(1, 14), family=st.integers(0, 2), n=st.integers(1, 3), priority=priorities)
    def arrive_with_blocks(self, prompt: int, family: int, n: int, priority: int) -> None:
        """As an import leaves n siblings: they share the blocks of their prompt."""
        blocks = self.pool.allocate(self.paging.num_blocks(prompt))
        if blocks is None:
            return
        leader = self._new_sequence(prompt, family, 6, priority=priority)
        leader.num_computed_tokens = prompt
        for group in range(len(self.paging.windows)):
            first = self.paging.first_visible(group, prompt)
            leader.tables.fill(group, first, [blocks.pop() for _ in range(-(-prompt // BLOCK_SIZE) - first)])
            for position in range(first * BLOCK_SIZE, prompt):
                self.memory.write(leader.tables[group], position, content(group, leader.token_ids, position))
        siblings = [leader, *(leader.fork(index) for index in range(1, n))]
        for seq in siblings[1:]:
            self.pool.share(seq.tables.held())
            self.alive[seq] = 6
        for index, seq in enumerate(siblings):
            seq.token_ids.append(600 + index)
            self.scheduler.add(seq)

    @rule(
        prompt=st.integers(1, 23),
        family=st.integers(0, 2),
        priority=priorities,
        prompt_logprobs=wanted_prompt_logprobs,
    )
    def arrive_pinned(self, prompt: int, family: int, priority: int, prompt_logprobs: int | None) -> None:
        """As a prefill that a consumer follows: over with its first token."""
        changes = {"priority": priority, "prompt_logprobs": prompt_logprobs}
        self.scheduler.add(self._new_sequence(prompt, family, 1, is_pinned=True, **changes))

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def remove(self, data: Any) -> None:
        seq = data.draw(st.sampled_from(list(self.alive)))
        del self.alive[seq]
        self.scheduler.remove(self.clock, seq)

    @rule(count=st.integers(1, 4))
    def somebody_else_takes_blocks(self, count: int) -> None:
        self.foreign += self.pool.allocate(count) or []

    @precondition(lambda self: self.foreign)
    @rule()
    def they_are_given_back(self) -> None:
        self.pool.release(self.foreign)
        self.foreign = []

    @precondition(lambda self: len(self.plans) < self.num_stages)
    @rule()
    def schedule(self) -> None:
        self.clock += 1.0
        plan = self.scheduler.schedule(self.clock)
        if plan is None:
            assert not self.alive or self.foreign or self.plans, "there is work and room, but no plan"
            return
        open_seqs = self.scheduler.num_running + self.scheduler.num_waiting
        assert len(plan.slices) <= -(-open_seqs // self.num_stages), "other stages have less"
        self._check_apart(plan)
        self.plans.append(plan)
        assert 0 < sum(piece.num_scheduled_tokens for piece in plan.slices) <= self.budget
        self._check_writes(plan)
        self._check_chunks(plan)
        self._schedule_ahead()

    @precondition(lambda self: len(self.results) < len(self.plans))
    @rule()
    def compute(self) -> None:
        """The engine computes the next step; nobody is told yet."""
        plan = self.plans[len(self.results)]
        self.memory.copy(plan.block_copies)
        drawn = [token_id for sampled in self.last.sampled for token_id in sampled]
        assert plan.follows is None or plan.follows.step_id == self.last.step_id
        rows = plan.follows.rows if plan.follows else (0,) * len(plan.slices)
        token_ids = [(drawn[row],) if plan.follows else () for row in rows]
        sampled = tuple(map(self._execute, plan.slices, token_ids))
        told = {
            number: tuple(
                make_logprobs(target, at) for at, target in enumerate(piece.prompt_targets, piece.start + 1)
            )
            for number, piece in enumerate(plan.slices)
        }
        self.last = StepResult(step_id=plan.step_id, sampled=sampled, prompt_logprobs=told)
        self.results.append(self.last)

    @precondition(lambda self: self.plans)
    @rule()
    def complete(self) -> None:
        if not self.results:
            self.compute()
        plan = self.plans.popleft()
        result = self.results.popleft()
        for seq, number in self.scheduler.complete(self.clock, result):
            drawn = result.sampled[number]
            self._tell_prompt(seq, result.prompt_logprobs.get(number, ()), has_drawn=bool(drawn))
            seq.token_ids.extend(drawn)
            self.scheduler.end_verification(seq, plan.slices[number])
            if plan.slices[number].num_drafts:
                last = (seq.num_tokens - 1) // BLOCK_SIZE
                assert all(len(table) <= last + 1 for table in seq.tables), "wrong drafts keep a block"
            if drawn and seq.num_output_tokens >= self.alive[seq]:
                del self.alive[seq]
                self.scheduler.remove(self.clock, seq)
        if self.plans:
            self._schedule_ahead()

    @precondition(lambda self: self.plans)
    @rule()
    def fail(self) -> None:
        """The first step fails; what was planned behind it comes back, too."""
        if not self.results:
            self.compute()
        self.plans.popleft()
        self.results.popleft()
        for seq in self.scheduler.fail_step(self.clock):
            del self.alive[seq]

    # --- what must hold ---

    @precondition(lambda self: hasattr(self, "pool"))
    @invariant()
    def the_pool_is_whole(self) -> None:
        pool = self.pool
        pool.check_invariants()
        self.scheduler.check_invariants()
        assert pool.num_free + pool.num_cached + pool.num_used == pool.num_blocks
        held = {block_id for seq in self.alive for block_id in seq.tables.held()}
        assert not self.alive or pool.num_used >= len(held | set(self.foreign))

    @invariant()
    def no_block_of_a_step_in_flight_is_given_away(self) -> None:
        for piece in [piece for plan in self.plans for piece in plan.slices]:
            assert {self.pool.state(block_id) for block_id in blocks_of(piece)} <= {BlockState.ACTIVE}

    @invariant()
    def nobody_keeps_what_left_its_windows(self) -> None:
        for seq in self.alive:
            for group in range(len(self.paging.windows)):
                first = self.paging.first_visible(group, seq.num_computed_tokens)
                assert set(seq.tables[group][:first]) <= {NO_BLOCK}

    def teardown(self) -> None:
        """Left alone, every sequence finishes and every block comes back."""
        if not hasattr(self, "scheduler"):
            return
        self.pool.release(self.foreign)
        self.foreign = []
        for _ in range(2 * MAX_TOKENS * (len(self.alive) + 1)):
            while self.plans:
                self.complete()
            if self.alive:
                self.schedule()
        assert not self.alive
        assert not self.plans
        assert self.pool.num_available == self.pool.num_blocks

    # --- parts ---

    def _schedule_ahead(self) -> None:
        """A sequence that has all the tokens it wants ends as by a stop: nobody knows before."""
        running = self.scheduler.num_running
        plan = None
        if self.plans_ahead:
            plan = self.scheduler.schedule_ahead(
                self.clock, lambda seq: seq.is_pinned or seq.num_tokens + 1 >= MAX_TOKENS
            )
        assert self.scheduler.num_running == running, "somebody comes or goes"
        if plan is not None:
            assert all(piece.token_ids == (SAMPLED,) for piece in plan.slices)
            self.plans.append(plan)
            self._check_writes(plan)

    def _new_sequence(self, prompt: int, family: int, num_outputs: int, **changes: Any) -> Sequence:
        self.clock += 1.0
        name, first = f"{self.clock:08.0f}", 1 + 100 * family
        seq = make_sequence(
            name, prompt=prompt, first=first, arrival_s=self.clock, paging=self.paging, **changes
        )
        self.alive[seq] = num_outputs
        return seq

    def _tell_prompt(self, seq: Sequence, computed: tuple[PositionLogprobs, ...], *, has_drawn: bool) -> None:
        """Each position of the prompt is told once and in order, all of them before a token is drawn."""
        start, entries = seq.take_prompt_logprobs(computed)
        told = self.told.setdefault(seq, [])
        assert not entries or start == 1 + len(told)
        told += entries
        prompt = seq.token_ids[: seq.num_prompt_tokens]
        expected = [make_logprobs(token_id, at) for at, token_id in enumerate(prompt)][1:]
        asks = seq.params.prompt_logprobs is not None
        assert told == (expected[: len(told)] if asks else [])
        assert not asks or not has_drawn or told == expected
        assert not asks or not seq.num_cached_tokens

    def _check_writes(self, plan: StepPlan) -> None:
        """Whatever a slice writes in one group, no other slice and no other group sees."""
        tables = [set(table) - {NO_BLOCK} for piece in plan.slices for table in piece.block_tables]
        targets = [target for _, target in plan.block_copies]
        assert len(set(targets)) == len(targets)
        slices = [(piece, table) for piece in plan.slices for table in piece.block_tables]
        for number, (piece, table) in enumerate(slices):
            last = piece.start + piece.num_scheduled_tokens - 1
            assert len(table) == last // BLOCK_SIZE + 1
            written = set(table[piece.start // BLOCK_SIZE :])
            others = [other for index, other in enumerate(tables) if index != number]
            assert NO_BLOCK not in written
            assert not any(written & other for other in others)
            assert not any(self.pool.cache.hash_of(block_id) for block_id in written)

    def _check_apart(self, plan: StepPlan) -> None:
        """It computes nothing that a step in flight computes, and writes nothing that one reads.

        Behind a chunk of a prompt it may compute the next one.
        """
        starts = {piece.seq_id: piece.start for piece in plan.slices}
        written = {
            block_id
            for piece in plan.slices
            for table in piece.block_tables
            for block_id in table[piece.start // BLOCK_SIZE :]
        } | {target for _, target in plan.block_copies}
        for other in (piece for step in self.plans for piece in step.slices):
            if (start := starts.get(other.seq_id)) is None:
                assert not written & blocks_of(other)
            else:
                assert start >= other.start + other.num_scheduled_tokens
                assert not other.samples

    def _check_chunks(self, plan: StepPlan) -> None:
        """A long prompt gets no more than the threshold, and no more are computed in part than allowed."""
        lengths = {seq.seq_id: seq.num_tokens for seq in self.alive}
        pieces = [(piece, lengths[piece.seq_id] - piece.start) for piece in plan.slices]
        left = [num_left for piece, num_left in pieces if piece.num_scheduled_tokens < num_left]
        assert len(left) <= self.num_partial
        assert sum(0 < self.threshold < num_tokens for num_tokens in left) <= 1, "long prompts"
        for piece, num_left in pieces:
            assert not 0 < self.threshold < num_left or piece.num_scheduled_tokens <= self.threshold

    def _execute(self, piece: SequenceSlice, drawn: tuple[int, ...]) -> tuple[int, ...]:
        """Check what the slice reads, write what it computes, draw a token that depends on all of it.

        What nobody waits for any more is written all the same.
        """
        seq = next((one for one in self.alive if one.seq_id == piece.seq_id), None)
        token_ids = [] if seq is None else [*seq.token_ids[: piece.start], *(drawn or piece.token_ids)]
        assert seq is None or seq.state is SequenceState.RUNNING
        assert seq is None or token_ids[: seq.num_tokens] == seq.token_ids[: len(token_ids)]
        for group, (window, table) in enumerate(zip(self.paging.windows, piece.block_tables, strict=True)):
            for position in visible(window, piece.start) if seq is not None else ():
                expected = content(group, token_ids, position)
                assert self.memory.read(table, position) == expected, (piece, position)
            for position in range(piece.start, piece.start + piece.num_scheduled_tokens):
                self.memory.write(table, position, content(group, token_ids, position))
        drawn = tuple(700 + sample.position for sample in piece.samples)
        return drawn[: piece.num_verified(drawn)]


SchedulerMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestScheduler = SchedulerMachine.TestCase
