"""The scheduler under any order of arrivals, removals and steps, against a memory that remembers contents."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from baton_core.block_pool import BlockPool, BlockState
from baton_core.scheduler import Scheduler, SchedulerConfig
from baton_core.sequence import Sequence, SequenceState
from baton_core.step_plan import SequenceSlice, StepPlan, StepResult
from tests.builders import BLOCK_SIZE, make_sequence

NUM_BLOCKS = 10
MAX_TOKENS = 24
"""Prompt and output: any one sequence fits the pool."""


class Memory:
    """Slots that hold what a token's KV depends on: every token up to its own."""

    def __init__(self) -> None:
        self._slots: dict[tuple[int, int], int] = {}

    def write(self, block_ids: Any, position: int, content: int) -> None:
        self._slots[block_ids[position // BLOCK_SIZE], position % BLOCK_SIZE] = content

    def read(self, block_ids: Any, position: int) -> int | None:
        return self._slots.get((block_ids[position // BLOCK_SIZE], position % BLOCK_SIZE))

    def copy(self, pairs: tuple[tuple[int, int], ...]) -> None:
        copied = {
            (target, slot): self._slots[source, slot]
            for source, target in pairs
            for slot in range(BLOCK_SIZE)
            if (source, slot) in self._slots
        }
        self._slots.update(copied)


class SchedulerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.memory = Memory()
        self.alive: dict[Sequence, int] = {}
        """Every sequence that has not ended, with the output tokens it wants."""
        self.plan: StepPlan | None = None
        self.tokens_of_plan: dict[Any, tuple[int, ...]] = {}
        self.foreign: list[int] = []
        self.clock = 0.0

    @initialize(budget=st.integers(1, 12), max_num_seqs=st.integers(1, 4))
    def configure(self, budget: int, max_num_seqs: int) -> None:
        self.budget = budget
        config = SchedulerConfig(
            block_size=BLOCK_SIZE, max_num_seqs=max_num_seqs, max_num_batched_tokens=budget
        )
        self.scheduler = Scheduler(self.pool, config)

    # --- inputs ---

    @rule(prompt=st.integers(1, 14), family=st.integers(0, 2), num_outputs=st.integers(1, 10))
    def arrive(self, prompt: int, family: int, num_outputs: int) -> None:
        seq = self._new_sequence(prompt, family, num_outputs)
        self.scheduler.add(seq)

    @rule(prompt=st.integers(1, 14), family=st.integers(0, 2), n=st.integers(1, 3))
    def arrive_with_blocks(self, prompt: int, family: int, n: int) -> None:
        """As an import leaves n siblings: they share the blocks of their prompt."""
        table = self.pool.allocate(-(-prompt // BLOCK_SIZE))
        if table is None:
            return
        leader = self._new_sequence(prompt, family, 6)
        leader.block_table, leader.num_computed_tokens = table, prompt
        for position in range(prompt):
            self.memory.write(table, position, hash(tuple(leader.token_ids[: position + 1])))
        siblings = [leader, *(leader.fork(index) for index in range(1, n))]
        for seq in siblings[1:]:
            self.pool.share(seq.block_table)
            self.alive[seq] = 6
        for index, seq in enumerate(siblings):
            seq.token_ids.append(600 + index)
            self.scheduler.add(seq)

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

    @precondition(lambda self: self.plan is None)
    @rule()
    def schedule(self) -> None:
        self.clock += 1.0
        self.plan = self.scheduler.schedule(self.clock)
        if self.plan is None:
            assert not self.alive or self.foreign, "there is work and room, but no plan"
            return
        assert 0 < sum(piece.num_scheduled_tokens for piece in self.plan.slices) <= self.budget
        self._check_writes(self.plan)

    @precondition(lambda self: self.plan is not None)
    @rule()
    def complete(self) -> None:
        assert self.plan is not None
        self.memory.copy(self.plan.block_copies)
        sampled = tuple(self._execute(piece) for piece in self.plan.slices)
        result = StepResult(step_id=self.plan.step_id, sampled=sampled)
        self.plan = None
        for seq, drawn in self.scheduler.complete(self.clock, result):
            seq.token_ids.extend(drawn)
            if drawn and seq.num_output_tokens >= self.alive[seq]:
                del self.alive[seq]
                self.scheduler.remove(self.clock, seq)

    @precondition(lambda self: self.plan is not None)
    @rule()
    def fail(self) -> None:
        self.plan = None
        for seq in self.scheduler.fail_step(self.clock):
            del self.alive[seq]

    # --- what must hold ---

    @invariant()
    def the_pool_is_whole(self) -> None:
        self.pool.check_invariants()
        assert self.pool.num_free + self.pool.num_cached + self.pool.num_used == NUM_BLOCKS

    @invariant()
    def no_block_of_the_step_in_flight_is_given_away(self) -> None:
        for piece in self.plan.slices if self.plan else ():
            assert {self.pool.state(block_id) for block_id in piece.block_tables[0]} <= {BlockState.ACTIVE}

    def teardown(self) -> None:
        """Left alone, every sequence finishes and every block comes back."""
        if not hasattr(self, "scheduler"):
            return
        self.pool.release(self.foreign)
        self.foreign = []
        for _ in range(2 * MAX_TOKENS * (len(self.alive) + 1)):
            if self.plan is not None:
                self.complete()
            if self.alive:
                self.schedule()
        assert not self.alive
        assert self.plan is None
        assert self.pool.num_available == NUM_BLOCKS

    # --- parts ---

    def _new_sequence(self, prompt: int, family: int, num_outputs: int) -> Sequence:
        self.clock += 1.0
        name = f"{self.clock:08.0f}"
        seq = make_sequence(name, prompt=prompt, first=1 + 100 * family, arrival_s=self.clock)
        self.alive[seq] = num_outputs
        return seq

    def _check_writes(self, plan: StepPlan) -> None:
        """Whatever a slice writes, no other slice sees."""
        tables = [set(piece.block_tables[0]) for piece in plan.slices]
        targets = [target for _, target in plan.block_copies]
        assert len(set(targets)) == len(targets)
        for number, piece in enumerate(plan.slices):
            last = piece.start + piece.num_scheduled_tokens - 1
            assert len(piece.block_tables[0]) == last // BLOCK_SIZE + 1
            written = set(piece.block_tables[0][piece.start // BLOCK_SIZE :])
            others = [table for other, table in enumerate(tables) if other != number]
            assert not any(written & table for table in others)
            assert not any(self.pool.cache.hash_of(block_id) for block_id in written)

    def _execute(self, piece: SequenceSlice) -> tuple[int, ...]:
        """Check what the slice reads, write what it computes, draw a token that depends on all of it."""
        seq = next((one for one in self.alive if one.seq_id == piece.seq_id), None)
        if seq is None:
            return (0,) * len(piece.samples)
        assert seq.state is SequenceState.RUNNING
        for position in range(piece.start):
            expected = hash(tuple(seq.token_ids[: position + 1]))
            assert self.memory.read(piece.block_tables[0], position) == expected, (piece, position)
        for position, token_id in enumerate(piece.token_ids, start=piece.start):
            assert token_id == seq.token_ids[position]
            self.memory.write(piece.block_tables[0], position, hash(tuple(seq.token_ids[: position + 1])))
        return tuple(700 + sample.position for sample in piece.samples)


SchedulerMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestScheduler = SchedulerMachine.TestCase
