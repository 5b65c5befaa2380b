"""What a step computes, in exact tokens and block ids: budget, order, prefix hits, preemption, ends."""

from __future__ import annotations

import pytest

from baton_core.block_pool import BlockPool, BlockState
from baton_core.scheduler import Scheduler, SchedulerConfig
from baton_core.sequence import Sequence, SequenceState
from baton_core.step_plan import StepPlan, StepResult
from tests.builders import BLOCK_SIZE, make_sequence, step_result


def make_scheduler(
    num_blocks: int = 16, *, budget: int = 64, max_num_seqs: int = 8
) -> tuple[Scheduler, BlockPool]:
    pool = BlockPool(num_blocks)
    config = SchedulerConfig(block_size=BLOCK_SIZE, max_num_seqs=max_num_seqs, max_num_batched_tokens=budget)
    return Scheduler(pool, config), pool


def plan_step(scheduler: Scheduler) -> StepPlan:
    plan = scheduler.schedule(0.0)
    assert plan is not None
    return plan


def finish_step(scheduler: Scheduler, plan: StepPlan, token_id: int = 500) -> None:
    """Complete a step; every sequence at its end goes on with `token_id`."""
    for seq, sampled in scheduler.complete(0.0, step_result(plan, token_id)):
        seq.token_ids.extend(sampled[:1])


def run_steps(scheduler: Scheduler, count: int) -> None:
    for _ in range(count):
        finish_step(scheduler, plan_step(scheduler))


def shape(plan: StepPlan) -> list[tuple[str, int, int]]:
    """(request, start, number of tokens) of each slice."""
    return [(piece.seq_id.request_id, piece.start, piece.num_scheduled_tokens) for piece in plan.slices]


def give_blocks(pool: BlockPool, seq: Sequence, num_blocks: int) -> None:
    """As an import leaves a sequence: its prompt is in its blocks, its first token is not."""
    seq.block_table = pool.allocate(num_blocks) or []
    seq.num_computed_tokens = seq.num_tokens
    seq.token_ids.append(500)


# --- budget and order ---


def test_nothing_to_compute_is_no_plan() -> None:
    scheduler, _ = make_scheduler()
    assert scheduler.schedule(0.0) is None


def test_a_prompt_is_computed_in_chunks_of_the_budget() -> None:
    scheduler, _ = make_scheduler(budget=6)
    scheduler.add(make_sequence("a", prompt=14))
    chunks = []
    for _ in range(3):
        plan = plan_step(scheduler)
        piece = plan.slices[0]
        chunks.append((piece.start, piece.token_ids, piece.block_ids, len(piece.samples)))
        finish_step(scheduler, plan)
    assert chunks == [
        (0, (1, 2, 3, 4, 5, 6), (0, 1), 0),
        (6, (7, 8, 9, 10, 11, 12), (0, 1, 2), 0),
        (12, (13, 14), (0, 1, 2, 3), 1),
    ]


def test_what_one_prompt_leaves_of_the_budget_goes_to_the_next() -> None:
    scheduler, _ = make_scheduler(budget=10)
    scheduler.add(make_sequence("a", prompt=6))
    scheduler.add(make_sequence("b", prompt=9, first=100, arrival_s=1.0))
    assert shape(plan_step(scheduler)) == [("a", 0, 6), ("b", 0, 4)]


def test_decodes_come_before_prompts_however_late_they_arrived() -> None:
    scheduler, _ = make_scheduler(budget=4)
    scheduler.add(make_sequence("late", prompt=3, first=100, arrival_s=5.0))
    run_steps(scheduler, 1)
    scheduler.add(make_sequence("early", prompt=9, arrival_s=1.0))
    assert shape(plan_step(scheduler)) == [("late", 3, 1), ("early", 0, 3)]


def test_running_prompts_come_before_new_ones() -> None:
    scheduler, _ = make_scheduler(budget=4)
    scheduler.add(make_sequence("a", prompt=6))
    run_steps(scheduler, 1)
    scheduler.add(make_sequence("b", prompt=6, first=100, arrival_s=1.0))
    assert shape(plan_step(scheduler)) == [("a", 4, 2), ("b", 0, 2)]


def test_waiting_sequences_are_admitted_by_arrival_then_by_name() -> None:
    scheduler, _ = make_scheduler()
    for request_id, arrival_s in (("c", 1.0), ("b", 0.0), ("a", 1.0)):
        scheduler.add(make_sequence(request_id, prompt=2, arrival_s=arrival_s))
    assert [request_id for request_id, _, _ in shape(plan_step(scheduler))] == ["b", "a", "c"]


def test_no_more_than_max_num_seqs_run() -> None:
    scheduler, _ = make_scheduler(max_num_seqs=2)
    for request_id in "abc":
        scheduler.add(make_sequence(request_id, prompt=2))
    assert len(plan_step(scheduler).slices) == 2
    assert (scheduler.num_running, scheduler.num_waiting) == (2, 1)


def test_a_prompt_that_does_not_fit_makes_the_later_ones_wait() -> None:
    scheduler, pool = make_scheduler(4)
    pool.allocate(2)
    scheduler.add(make_sequence("big", prompt=12))
    scheduler.add(make_sequence("small", prompt=2, first=100, arrival_s=1.0))
    assert scheduler.schedule(0.0) is None
    assert pool.num_free == 2


def test_a_decode_takes_a_block_only_when_it_reaches_one() -> None:
    scheduler, _ = make_scheduler()
    scheduler.add(make_sequence(prompt=7))
    tables = []
    for _ in range(3):
        plan = plan_step(scheduler)
        tables.append(plan.slices[0].block_ids)
        finish_step(scheduler, plan)
    assert tables == [(0, 1), (0, 1), (0, 1, 2)]


def test_steps_are_numbered_and_only_the_one_in_flight_is_taken_back() -> None:
    scheduler, _ = make_scheduler()
    scheduler.add(make_sequence())
    plan = plan_step(scheduler)
    with pytest.raises(AssertionError, match="not in flight"):
        scheduler.complete(0.0, StepResult(step_id=plan.step_id + 1, sampled=((500,),)))
    with pytest.raises(AssertionError, match="in flight"):
        scheduler.schedule(0.0)
    finish_step(scheduler, plan)
    assert plan_step(scheduler).step_id == plan.step_id + 1


def test_queued_tokens_are_those_before_each_sequence_is_at_its_decode() -> None:
    scheduler, _ = make_scheduler(budget=4)
    scheduler.add(make_sequence("a", prompt=6))
    scheduler.add(make_sequence("b", prompt=3, first=100, arrival_s=1.0))
    assert scheduler.num_queued_tokens == 5 + 2
    run_steps(scheduler, 1)
    assert scheduler.num_queued_tokens == 1 + 2
    run_steps(scheduler, 2)
    assert scheduler.num_queued_tokens == 0


# --- prefix hits ---


def test_computed_blocks_are_shared_with_the_next_prompt() -> None:
    scheduler, _ = make_scheduler()
    scheduler.add(make_sequence("a", prompt=10))
    run_steps(scheduler, 1)
    later = make_sequence("b", prompt=10, arrival_s=1.0)
    scheduler.add(later)
    piece = plan_step(scheduler).slices[1]
    assert (piece.start, piece.token_ids, piece.block_ids) == (8, (9, 10), (0, 1, 3))
    assert later.num_cached_tokens == 8


def test_at_least_one_token_of_a_prompt_is_computed() -> None:
    scheduler, _ = make_scheduler()
    scheduler.add(make_sequence("a", prompt=8))
    run_steps(scheduler, 1)
    scheduler.add(make_sequence("b", prompt=8, arrival_s=1.0))
    piece = plan_step(scheduler).slices[1]
    assert (piece.start, piece.block_ids, len(piece.samples)) == (4, (0, 3), 1)


def test_two_equal_prompts_in_one_step_are_computed_twice_and_cached_once() -> None:
    scheduler, pool = make_scheduler()
    scheduler.add(make_sequence("a", prompt=8))
    scheduler.add(make_sequence("b", prompt=8, arrival_s=1.0))
    plan = plan_step(scheduler)
    assert [piece.block_ids for piece in plan.slices] == [(0, 1), (2, 3)]
    finish_step(scheduler, plan)
    assert len(pool.cache) == 2
    assert [pool.cache.hash_of(block_id) is not None for block_id in range(4)] == [True, True, False, False]


def test_generated_blocks_are_cached_like_prompt_blocks() -> None:
    scheduler, pool = make_scheduler()
    seq = make_sequence(prompt=6)
    scheduler.add(seq)
    run_steps(scheduler, 4)
    scheduler.remove(0.0, seq)
    assert pool.cache.find_prefix(seq.hashes(BLOCK_SIZE)) == [0, 1]


# --- preemption ---


def test_the_sequence_that_came_last_is_preempted_first() -> None:
    scheduler, pool = make_scheduler(6)
    seqs = [
        make_sequence(name, prompt=8, first=index * 100, arrival_s=index) for index, name in enumerate("abc")
    ]
    for seq in seqs:
        scheduler.add(seq)
    run_steps(scheduler, 1)
    plan = plan_step(scheduler)
    assert shape(plan) == [("a", 8, 1), ("b", 8, 1)]
    assert [piece.block_ids for piece in plan.slices] == [(0, 1, 5), (2, 3, 4)]
    assert (seqs[2].state, seqs[2].block_table, seqs[2].num_computed_tokens) == (SequenceState.WAITING, [], 0)
    assert scheduler.num_preemptions == 1
    pool.check_invariants()


def test_a_preempted_sequence_recomputes_its_tokens_and_draws_only_the_next() -> None:
    scheduler, pool = make_scheduler(4)
    first, second = make_sequence("a", prompt=7), make_sequence("b", prompt=6, first=100, arrival_s=1.0)
    scheduler.add(first)
    scheduler.add(second)
    run_steps(scheduler, 3)
    assert second.block_table == []
    scheduler.remove(0.0, first)
    piece = plan_step(scheduler).slices[0]
    computed = (piece.start, len(piece.token_ids), piece.samples[0].position)
    assert (piece.seq_id.request_id, sum(computed[:2]), computed[2]) == (
        "b",
        second.num_tokens,
        second.num_tokens,
    )
    pool.check_invariants()


def test_nobody_is_admitted_in_the_step_that_preempts() -> None:
    scheduler, _ = make_scheduler(5)
    for index, name in enumerate("ab"):
        scheduler.add(make_sequence(name, prompt=8, first=index * 100, arrival_s=index))
    run_steps(scheduler, 2)
    assert shape(plan_step(scheduler)) == [("a", 9, 1)]
    assert scheduler.num_waiting == 1


def test_whoever_came_last_gives_way_even_if_it_is_the_one_that_needs_a_block() -> None:
    scheduler, _ = make_scheduler(4)
    scheduler.add(make_sequence("a", prompt=6))
    scheduler.add(make_sequence("b", prompt=8, first=100, arrival_s=1.0))
    run_steps(scheduler, 1)
    assert shape(plan_step(scheduler)) == [("a", 6, 1)]


def test_a_sequence_that_waits_with_blocks_gives_them_up_before_an_earlier_one_stops() -> None:
    scheduler, pool = make_scheduler(4, max_num_seqs=1)
    running, waiting = make_sequence("a", prompt=8), make_sequence("b", prompt=7, first=100, arrival_s=1.0)
    scheduler.add(running)
    run_steps(scheduler, 1)
    give_blocks(pool, waiting, 2)
    scheduler.add(waiting)
    assert shape(plan_step(scheduler)) == [("a", 8, 1)]
    assert (waiting.block_table, waiting.num_computed_tokens) == ([], 0)


def test_when_nothing_runs_the_first_in_line_takes_the_blocks_of_those_behind_it() -> None:
    scheduler, pool = make_scheduler(8)
    head, holder = make_sequence("a", prompt=20), make_sequence("b", prompt=16, first=100, arrival_s=1.0)
    give_blocks(pool, holder, 4)
    scheduler.add(head)
    scheduler.add(holder)
    assert shape(plan_step(scheduler)) == [("a", 0, 20)]
    pool.check_invariants()


def test_siblings_that_fill_the_pool_together_do_not_block_each_other() -> None:
    scheduler, pool = make_scheduler(4)
    leader = make_sequence(prompt=15)
    give_blocks(pool, leader, 4)
    sibling = leader.fork(1)
    pool.share(sibling.block_table)
    scheduler.add(leader)
    scheduler.add(sibling)
    assert [piece.seq_id.index for piece in plan_step(scheduler).slices] == [0]
    pool.check_invariants()


def test_a_sequence_that_preempts_itself_leaves_its_blocks_to_those_that_wait() -> None:
    scheduler, pool = make_scheduler(4)
    late = make_sequence("late", prompt=8, first=100, arrival_s=5.0)
    scheduler.add(late)
    run_steps(scheduler, 1)
    early = make_sequence("early", prompt=8, arrival_s=1.0)
    give_blocks(pool, early, 2)
    scheduler.add(early)
    assert shape(plan_step(scheduler)) == [("early", 8, 1)]


def test_a_pinned_prompt_gets_all_its_blocks_at_once_and_keeps_them() -> None:
    scheduler, pool = make_scheduler(8, budget=4)
    decode = make_sequence("decode", prompt=3)
    scheduler.add(decode)
    run_steps(scheduler, 1)
    pinned = make_sequence("pinned", prompt=24, first=100, arrival_s=1.0, is_pinned=True)
    scheduler.add(pinned)
    plan = plan_step(scheduler)
    assert (len(pinned.block_table), len(plan.slices[1].block_ids)) == (6, 1)
    finish_step(scheduler, plan)
    pool.allocate(1)
    run_steps(scheduler, 1)
    assert (len(pinned.block_table), scheduler.num_preemptions) == (6, 1)
    assert decode.state is SequenceState.WAITING


# --- siblings: copy on write ---


def test_siblings_copy_the_shared_tail_before_they_write_it() -> None:
    scheduler, pool = make_scheduler()
    leader = make_sequence(prompt=6)
    give_blocks(pool, leader, 2)
    siblings = [leader, leader.fork(1)]
    pool.share(siblings[1].block_table)
    for seq in siblings:
        scheduler.add(seq)
    plan = plan_step(scheduler)
    assert plan.block_copies == ((1, 2), (1, 3))
    assert [piece.block_ids for piece in plan.slices] == [(0, 2), (0, 3)]
    assert pool.state(1) is BlockState.ACTIVE
    finish_step(scheduler, plan)
    assert pool.state(1) is BlockState.FREE
    assert plan_step(scheduler).block_copies == ()


def test_the_last_sibling_writes_the_tail_in_place() -> None:
    scheduler, pool = make_scheduler(max_num_seqs=1)
    leader = make_sequence(prompt=6)
    give_blocks(pool, leader, 2)
    sibling = leader.fork(1)
    pool.share(sibling.block_table)
    scheduler.add(leader)
    scheduler.add(sibling)
    plan = plan_step(scheduler)
    assert plan.block_copies == ((1, 2),)
    finish_step(scheduler, plan)
    scheduler.remove(0.0, leader)
    plan = plan_step(scheduler)
    assert (plan.block_copies, plan.slices[0].block_ids) == ((), (0, 1))


def test_a_tail_that_is_full_needs_no_copy() -> None:
    scheduler, pool = make_scheduler()
    leader = make_sequence(prompt=8)
    give_blocks(pool, leader, 2)
    sibling = leader.fork(1)
    pool.share(sibling.block_table)
    scheduler.add(leader)
    scheduler.add(sibling)
    plan = plan_step(scheduler)
    assert plan.block_copies == ()
    assert [piece.block_ids for piece in plan.slices] == [(0, 1, 2), (0, 1, 3)]


# --- ends ---


def test_a_waiting_sequence_ends_at_once() -> None:
    scheduler, pool = make_scheduler()
    seq = make_sequence()
    scheduler.add(seq)
    scheduler.remove(1.0, seq)
    assert (seq.state, scheduler.num_waiting, pool.num_used) == (SequenceState.FINISHED, 0, 0)


def test_the_blocks_of_a_sequence_in_flight_are_released_after_the_step() -> None:
    scheduler, pool = make_scheduler()
    seq = make_sequence(prompt=6)
    scheduler.add(seq)
    plan = plan_step(scheduler)
    scheduler.remove(1.0, seq)
    assert (seq.state, pool.num_used) == (SequenceState.DRAINING, 2)
    assert scheduler.complete(2.0, step_result(plan)) == []
    assert (seq.state, pool.num_used, len(pool.cache)) == (SequenceState.FINISHED, 0, 0)
    assert seq.entered_s[SequenceState.FINISHED] == 2.0


def test_a_sequence_between_steps_is_released_at_once() -> None:
    scheduler, pool = make_scheduler()
    seq = make_sequence(prompt=6)
    scheduler.add(seq)
    run_steps(scheduler, 1)
    scheduler.remove(1.0, seq)
    assert (seq.state, pool.num_used, pool.num_cached) == (SequenceState.FINISHED, 0, 1)


def test_a_failed_step_ends_its_sequences_and_publishes_nothing() -> None:
    scheduler, pool = make_scheduler()
    kept, cancelled = make_sequence("a", prompt=6), make_sequence("b", prompt=6, first=100)
    scheduler.add(kept)
    scheduler.add(cancelled)
    plan_step(scheduler)
    scheduler.remove(0.0, cancelled)
    later = make_sequence("later", arrival_s=9.0)
    scheduler.add(later)
    assert scheduler.fail_step(1.0) == [kept]
    assert (kept.state, cancelled.state) == (SequenceState.FINISHED, SequenceState.FINISHED)
    assert (pool.num_available, len(pool.cache)) == (16, 0)
    assert shape(plan_step(scheduler)) == [("later", 0, 8)]


def test_a_failed_step_lets_go_of_the_sources_of_its_copies() -> None:
    scheduler, pool = make_scheduler()
    leader = make_sequence(prompt=6)
    give_blocks(pool, leader, 2)
    sibling = leader.fork(1)
    pool.share(sibling.block_table)
    scheduler.add(leader)
    scheduler.add(sibling)
    plan_step(scheduler)
    scheduler.fail_step(1.0)
    assert pool.num_free == 16
