"""A step computes exact tokens and block ids: budget, order, prefix hits, ends."""

from __future__ import annotations

import pytest

from baton_core.worker.sequence import SequenceState
from baton_core.worker.step_plan import StepResult
from tests.builders import make_sequence, step_result
from tests.unit.core.scheduling import (
    add_siblings,
    finish_step,
    give_blocks,
    make_scheduler,
    plan_step,
    run_steps,
    shape,
)

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
        chunks.append((piece.start, piece.token_ids, piece.block_tables[0], len(piece.samples)))
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


def test_a_decode_whose_prompt_came_from_elsewhere_does_not_wait_for_a_running_prompt() -> None:
    scheduler, pool = make_scheduler(budget=4)
    scheduler.add(make_sequence("long", prompt=12))
    run_steps(scheduler, 1)
    handed_over = make_sequence("handed over", prompt=4, first=100, arrival_s=9.0)
    give_blocks(pool, handed_over, 1)
    scheduler.add(handed_over)
    assert shape(plan_step(scheduler)) == [("handed over", 4, 1), ("long", 4, 3)]


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
        tables.append(plan.slices[0].block_tables[0])
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
    assert (piece.start, piece.token_ids, piece.block_tables[0]) == (8, (9, 10), (0, 1, 3))
    assert later.num_cached_tokens == 8


def test_at_least_one_token_of_a_prompt_is_computed() -> None:
    scheduler, _ = make_scheduler()
    scheduler.add(make_sequence("a", prompt=8))
    run_steps(scheduler, 1)
    scheduler.add(make_sequence("b", prompt=8, arrival_s=1.0))
    piece = plan_step(scheduler).slices[1]
    assert (piece.start, piece.block_tables[0], len(piece.samples)) == (4, (0, 3), 1)


def test_a_block_that_is_computed_twice_is_cached_once() -> None:
    scheduler, pool = make_scheduler()
    scheduler.add(make_sequence("a", prompt=8))
    scheduler.add(make_sequence("b", prompt=8, arrival_s=1.0))
    for tables in ([(0, 1)], [(0, 1, 2), (0, 3)]):
        plan = plan_step(scheduler)
        assert [piece.block_tables[0] for piece in plan.slices] == tables
        finish_step(scheduler, plan)
    assert [pool.cache.hash_of(block_id) is not None for block_id in range(4)] == [True, True, False, False]


def test_generated_blocks_are_cached_like_prompt_blocks() -> None:
    scheduler, pool = make_scheduler()
    seq = make_sequence(prompt=6)
    scheduler.add(seq)
    run_steps(scheduler, 4)
    scheduler.remove(0.0, seq)
    assert pool.cache.blocks(seq.hashes()) == [0, 1]


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
    add_siblings(scheduler, pool, make_sequence(prompt=6), 2)
    plan_step(scheduler)
    scheduler.fail_step(1.0)
    assert pool.num_free == 16
