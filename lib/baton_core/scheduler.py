"""Which tokens of which sequences the next step computes.

One sentence: under a token budget, give every running sequence the tokens it lacks, then admit waiting
ones. A decode is a sequence that lacks one token; a prompt chunk and a recompute lack more. A pinned
sequence gets the blocks of its whole prompt when it is admitted and keeps them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from baton_core.block_pool import BlockPool
from baton_core.sequence import Sequence, SequenceInput, SequenceState
from baton_core.step_plan import SequenceSlice, StepPlan, StepResult


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    block_size: int = 32
    max_num_seqs: int = 128
    """Sequences that run at once."""
    max_num_batched_tokens: int = 2048
    """Token budget of a step."""


class Scheduler:
    """First come, first served; preemption takes from whoever came last and recomputes later.

    One step is in flight at a time: `schedule` is called only between steps.
    """

    def __init__(self, pool: BlockPool, config: SchedulerConfig) -> None:
        self._pool = pool
        self._config = config
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._in_flight: dict[Sequence, int] = {}
        self._copy_sources: list[int] = []
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
        """Queue a waiting sequence by arrival."""
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
        self._drop_blocks(seq)

    def schedule(self, now: float) -> StepPlan | None:
        """Plan one step and take the blocks it needs; None when there is nothing to compute.

        The blocks of the sequences in the plan stay theirs until `complete`, whatever happens meanwhile.
        """
        assert not self._in_flight, "a step is in flight"
        plan = _PlanBuilder(self._config.max_num_batched_tokens, self._config.block_size)
        preempted_before = self.num_preemptions
        for seq in sorted(self._running, key=lambda seq: (seq.num_uncomputed_tokens > 1, _order(seq))):
            if seq.state is SequenceState.RUNNING and plan.budget:
                self._schedule_one(now, seq, plan)
        if self.num_preemptions == preempted_before or not plan.slices:
            self._admit(now, plan)
        if not plan.slices:
            return None
        self._step_id += 1
        self._in_flight = plan.num_tokens
        self._copy_sources = [source for source, _ in plan.copies]
        return StepPlan(step_id=self._step_id, slices=tuple(plan.slices), block_copies=tuple(plan.copies))

    def complete(self, now: float, result: StepResult) -> list[tuple[Sequence, tuple[int, ...]]]:
        """Take back the step in flight: the sequences that go on, each with the tokens drawn for it."""
        assert result.step_id == self._step_id, f"step {result.step_id} is not in flight"
        in_flight, self._in_flight = self._in_flight, {}
        self._pool.release(self._copy_sources)
        self._copy_sources = []
        alive = []
        for (seq, num_tokens), sampled in zip(in_flight.items(), result.sampled, strict=True):
            if seq.state is SequenceState.DRAINING:
                self._running.remove(seq)
                seq.apply(now, SequenceInput.STEP_DONE)
                self._drop_blocks(seq)
            else:
                self._advance(seq, num_tokens)
                alive.append((seq, sampled))
        return alive

    def fail_step(self, now: float) -> list[Sequence]:
        """End every sequence of the step in flight, which cannot be completed; returns those not over yet."""
        in_flight, self._in_flight = self._in_flight, {}
        self._pool.release(self._copy_sources)
        self._copy_sources = []
        alive = [seq for seq in in_flight if seq.state is not SequenceState.DRAINING]
        for seq in in_flight:
            self._running.remove(seq)
            seq.apply(now, SequenceInput.END if seq in alive else SequenceInput.STEP_DONE)
            self._drop_blocks(seq)
        return alive

    def _advance(self, seq: Sequence, num_tokens: int) -> None:
        """Count computed tokens and make the blocks that became full findable."""
        block_size = self._config.block_size
        first = seq.num_computed_tokens // block_size
        seq.num_computed_tokens += num_tokens
        full = range(first, seq.num_computed_tokens // block_size)
        for index in full:
            self._pool.publish(seq.block_table[index], seq.hashes(block_size)[index])

    def _schedule_one(self, now: float, seq: Sequence, plan: _PlanBuilder) -> None:
        num_tokens = min(seq.num_uncomputed_tokens, plan.budget)
        while not self._take_blocks(seq, num_tokens, plan):
            victim = self._victim(seq, plan)
            self._preempt(now, victim)
            if victim is seq:
                return
        plan.add(seq, num_tokens)

    def _admit(self, now: float, plan: _PlanBuilder) -> None:
        """Admit in order. If nothing runs, later ones that wait with blocks give them to the first."""
        while self._waiting and plan.budget and len(self._running) < self._config.max_num_seqs:
            seq = self._waiting[0]
            has_blocks = bool(seq.block_table)
            if not has_blocks:
                self._use_prefix(seq)
            num_tokens = min(seq.num_uncomputed_tokens, plan.budget)
            num_to_hold = seq.num_uncomputed_tokens if seq.is_pinned else num_tokens
            while not self._take_blocks(seq, num_to_hold, plan):
                victim = self._victim(seq, plan)
                if self._running or victim is seq:
                    if not has_blocks:
                        self._drop_blocks(seq)
                    return
                self._preempt(now, victim)
            self._waiting.popleft()
            if seq.num_cached_tokens is None:
                seq.num_cached_tokens = seq.num_computed_tokens
            seq.apply(now, SequenceInput.ADMIT)
            self._running.append(seq)
            plan.add(seq, num_tokens)

    def _use_prefix(self, seq: Sequence) -> None:
        """Share the cached blocks of its prefix; at least one token is left to compute."""
        block_size = self._config.block_size
        hashes = seq.hashes(block_size)[: (seq.num_tokens - 1) // block_size]
        seq.block_table = self._pool.cache.find_prefix(hashes)
        seq.num_computed_tokens = len(seq.block_table) * block_size
        self._pool.share(seq.block_table)

    def _take_blocks(self, seq: Sequence, num_tokens: int, plan: _PlanBuilder) -> bool:
        """Make the slots of the next `num_tokens` writable. False, with nothing taken, if it cannot be."""
        block_size = self._config.block_size
        num_blocks = -(-(seq.num_computed_tokens + num_tokens) // block_size)
        first = seq.num_computed_tokens // block_size
        is_copy = first < len(seq.block_table) and not self._pool.is_writable(seq.block_table[first])
        taken = self._pool.allocate(max(num_blocks - len(seq.block_table), 0) + is_copy)
        if taken is None:
            return False
        if is_copy:
            shared, seq.block_table[first] = seq.block_table[first], taken.pop(0)
            plan.copies.append((shared, seq.block_table[first]))
        seq.block_table.extend(taken)
        return True

    def _victim(self, seq: Sequence, plan: _PlanBuilder) -> Sequence:
        """Whoever came last among `seq` and those that hold blocks, are not pinned and not in this step."""
        holders = [seq, *(waiting for waiting in self._waiting if waiting.block_table)]
        holders += [one for one in self._running if one not in plan.num_tokens and not one.is_pinned]
        return max(holders, key=_order)

    def _preempt(self, now: float, seq: Sequence) -> None:
        self.num_preemptions += 1
        if seq in self._running:
            self._running.remove(seq)
            self._drop_blocks(seq)
            seq.apply(now, SequenceInput.PREEMPT)
            self.add(seq)
        else:
            self._drop_blocks(seq)

    def _drop_blocks(self, seq: Sequence) -> None:
        self._pool.release(seq.block_table)
        seq.block_table.clear()
        seq.num_computed_tokens = 0


class _PlanBuilder:
    """The step being planned."""

    def __init__(self, budget: int, block_size: int) -> None:
        self.budget = budget
        self._block_size = block_size
        self.num_tokens: dict[Sequence, int] = {}
        self.slices: list[SequenceSlice] = []
        self.copies: list[tuple[int, int]] = []

    def add(self, seq: Sequence, num_tokens: int) -> None:
        start = seq.num_computed_tokens
        self.budget -= num_tokens
        self.num_tokens[seq] = num_tokens
        end = start + num_tokens
        self.slices.append(
            SequenceSlice(
                seq_id=seq.seq_id,
                token_ids=tuple(seq.token_ids[start:end]),
                start=start,
                block_tables=(tuple(seq.block_table[: -(-end // self._block_size)]),),
                samples=seq.sample_specs() if end == seq.num_tokens else (),
            )
        )


def _order(seq: Sequence) -> tuple[float, str, int]:
    return (seq.arrival_s, seq.seq_id.request_id, seq.seq_id.index)
