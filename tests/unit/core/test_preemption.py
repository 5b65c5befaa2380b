"""Preemption when blocks run out, and how sibling sequences part, in exact block ids."""

from __future__ import annotations

from baton_core.blocks.block_pool import BlockState
from baton_core.worker.sequence import SequenceState
from tests.builders import make_sequence
from tests.unit.core.scheduling import (
    add_siblings,
    finish_step,
    give_blocks,
    make_scheduler,
    plan_step,
    run_steps,
    shape,
)

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
    assert [piece.block_tables[0] for piece in plan.slices] == [(0, 1, 5), (2, 3, 4)]
    assert (seqs[2].state, seqs[2].tables[0], seqs[2].num_computed_tokens) == (SequenceState.WAITING, [], 0)
    assert scheduler.num_preemptions == 1
    pool.check_invariants()


def test_a_preempted_sequence_recomputes_its_tokens_and_draws_only_the_next() -> None:
    scheduler, pool = make_scheduler(4)
    first, second = make_sequence("a", prompt=7), make_sequence("b", prompt=6, first=100, arrival_s=1.0)
    scheduler.add(first)
    scheduler.add(second)
    run_steps(scheduler, 3)
    assert second.tables[0] == []
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
    assert (waiting.tables[0], waiting.num_computed_tokens) == ([], 0)


def test_whoever_gives_way_does_not_start_again_before_those_that_run() -> None:
    scheduler, _ = make_scheduler(8, budget=4, max_num_partial_prefills=1)
    pinned = make_sequence("pinned", prompt=16, is_pinned=True)
    scheduler.add(pinned)
    run_steps(scheduler, 1)
    scheduler.add(make_sequence("urgent", prompt=20, first=100, priority=-1, prompt_logprobs=0))
    run_steps(scheduler, 4)
    plan = plan_step(scheduler)
    assert (scheduler.num_preemptions, shape(plan)) == (1, [("pinned", 4, 4)])
    finish_step(scheduler, plan)
    assert shape(plan_step(scheduler)) == [("urgent", 0, 4)]


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
    add_siblings(scheduler, pool, make_sequence(prompt=15), 4)
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
    assert (len(pinned.tables[0]), len(plan.slices[1].block_tables[0])) == (6, 1)
    finish_step(scheduler, plan)
    pool.allocate(1)
    run_steps(scheduler, 1)
    assert (len(pinned.tables[0]), scheduler.num_preemptions) == (6, 1)
    assert decode.state is SequenceState.WAITING


# --- siblings: copy on write ---


def test_siblings_copy_the_shared_tail_before_they_write_it() -> None:
    scheduler, pool = make_scheduler()
    add_siblings(scheduler, pool, make_sequence(prompt=6), 2)
    plan = plan_step(scheduler)
    assert plan.block_copies == ((1, 2), (1, 3))
    assert [piece.block_tables[0] for piece in plan.slices] == [(0, 2), (0, 3)]
    assert pool.state(1) is BlockState.ACTIVE
    finish_step(scheduler, plan)
    assert pool.state(1) is BlockState.FREE
    assert plan_step(scheduler).block_copies == ()


def test_the_last_sibling_writes_the_tail_in_place() -> None:
    scheduler, pool = make_scheduler(max_num_seqs=1)
    leader = make_sequence(prompt=6)
    add_siblings(scheduler, pool, leader, 2)
    plan = plan_step(scheduler)
    assert plan.block_copies == ((1, 2),)
    finish_step(scheduler, plan)
    scheduler.remove(0.0, leader)
    plan = plan_step(scheduler)
    assert (plan.block_copies, plan.slices[0].block_tables[0]) == ((), (0, 1))


def test_a_tail_that_is_full_needs_no_copy() -> None:
    scheduler, pool = make_scheduler()
    add_siblings(scheduler, pool, make_sequence(prompt=8), 2)
    plan = plan_step(scheduler)
    assert plan.block_copies == ()
    assert [piece.block_tables[0] for piece in plan.slices] == [(0, 1, 2), (0, 1, 3)]
