"""Sequences with several block tables, in exact block ids: windows, hits, siblings, pinned prompts."""

from __future__ import annotations

from baton_core.kv_layout.paging import NO_BLOCK, Paging
from baton_core.worker.sequence import Sequence
from baton_worker.core.scheduler import Scheduler
from tests.builders import BLOCK_SIZE, make_sequence
from tests.unit.core.scheduling import finish_step, make_scheduler, plan_step, run_steps, shape

WINDOW = Paging(block_size=BLOCK_SIZE, windows=(6,))
MIXED = Paging(block_size=BLOCK_SIZE, windows=(None, 6))


def add(
    scheduler: Scheduler, name: str, prompt: int, *, paging: Paging = MIXED, **changes: object
) -> Sequence:
    seq = make_sequence(name, prompt=prompt, paging=paging, **changes)  # type: ignore[arg-type]
    scheduler.add(seq)
    return seq


def test_every_group_has_its_own_blocks() -> None:
    scheduler, _ = make_scheduler(paging=MIXED)
    add(scheduler, "a", 7)
    plan = plan_step(scheduler)
    assert plan.slices[0].block_tables == ((0, 1), (2, 3))
    finish_step(scheduler, plan)
    finish_step(scheduler, plan_step(scheduler))
    assert plan_step(scheduler).slices[0].block_tables == ((0, 1, 4), (2, 3, 5))


def test_a_block_is_given_back_after_the_step_that_needed_it() -> None:
    scheduler, pool = make_scheduler(paging=WINDOW, budget=4)
    seq = add(scheduler, "a", 16, paging=WINDOW)
    tables = []
    for _ in range(4):
        plan = plan_step(scheduler)
        tables.append(plan.slices[0].block_tables[0])
        finish_step(scheduler, plan)
    assert tables == [(0,), (0, 1), (0, 1, 2), (NO_BLOCK, 1, 2, 3)]
    assert (seq.tables[0], pool.num_used, pool.num_cached) == ([NO_BLOCK, NO_BLOCK, 2, 3], 2, 2)


def test_a_long_sequence_runs_in_a_window_and_a_chunk_of_blocks() -> None:
    scheduler, pool = make_scheduler(WINDOW.max_blocks(400, 8), paging=WINDOW, budget=8)
    seq = add(scheduler, "a", 300, paging=WINDOW)
    while seq.num_tokens < 400:
        run_steps(scheduler, 1)
        pool.check_invariants()
    assert (pool.num_blocks, scheduler.num_preemptions) == (6, 0)


def test_a_prefix_counts_where_every_group_has_what_the_next_token_sees() -> None:
    scheduler, pool = make_scheduler(paging=MIXED)
    seq = add(scheduler, "a", 17)
    run_steps(scheduler, 1)
    scheduler.remove(0.0, seq)
    again = add(scheduler, "b", 17)
    assert plan_step(scheduler).slices[0].block_tables == ((0, 1, 2, 3, 10), (-1, -1, 7, 8, 11))
    assert again.num_cached_tokens == 16
    assert pool.num_used == 4 + 2 + 2


def test_a_hit_ends_before_a_window_that_was_evicted() -> None:
    scheduler, pool = make_scheduler(10, paging=MIXED)
    seq = add(scheduler, "a", 16)
    run_steps(scheduler, 1)
    assert seq.tables[1] == [NO_BLOCK, NO_BLOCK, 6, 7]
    scheduler.remove(0.0, seq)
    taken = pool.allocate(2 + 2) or []
    assert set(taken) == {8, 9, 4, 5}, "free ones, then those that left the window"
    pool.release(taken)
    hit = add(scheduler, "b", 13)
    plan = plan_step(scheduler)
    assert (plan.slices[0].start, hit.num_cached_tokens) == (0, 0)


def test_siblings_copy_the_tail_of_every_group() -> None:
    scheduler, pool = make_scheduler(paging=MIXED)
    leader = make_sequence("a", prompt=6, paging=MIXED)
    leader.tables.extend((2, 2), pool.allocate(4) or [])
    leader.num_computed_tokens = 6
    leader.token_ids.append(500)
    sibling = leader.fork(1)
    pool.share(sibling.tables.held())
    scheduler.add(leader)
    scheduler.add(sibling)
    plan = plan_step(scheduler)
    assert plan.block_copies == ((1, 4), (3, 5), (1, 6), (3, 7))
    assert [piece.block_tables for piece in plan.slices] == [((0, 4), (2, 5)), ((0, 6), (2, 7))]


def test_a_preempted_sequence_gives_up_its_blocks_in_every_group() -> None:
    scheduler, pool = make_scheduler(8, paging=MIXED)
    first, second = add(scheduler, "a", 8), add(scheduler, "b", 8, first=100, arrival_s=1.0)
    run_steps(scheduler, 1)
    assert shape(plan_step(scheduler)) == [("a", 8, 1)]
    assert (len(first.tables.held()), second.tables.held()) == (6, [])
    pool.check_invariants()


# --- pinned ---


def test_a_pinned_prompt_takes_a_window_and_a_chunk_and_goes_on_with_what_it_gives_back() -> None:
    scheduler, pool = make_scheduler(10 + 4, paging=MIXED, budget=8)
    seq = add(scheduler, "p", 40, is_pinned=True)
    plan = plan_step(scheduler)
    assert (len(seq.tables[0]), len(seq.tables[1]), pool.num_available) == (10, 4, 0)
    while plan.slices[0].start < 32:
        finish_step(scheduler, plan)
        assert pool.num_available == 0
        plan = plan_step(scheduler)
    finish_step(scheduler, plan)
    assert seq.tables[1][:8] == [NO_BLOCK] * 8
    assert len(seq.tables.held()) == MIXED.num_blocks(40) == 12


def test_what_a_pinned_prompt_still_has_to_give_back_cannot_be_found() -> None:
    for is_pinned, found in ((False, [0, 1, None]), (True, [None, None, None])):
        scheduler, pool = make_scheduler(20, paging=WINDOW, budget=8)
        seq = add(scheduler, "p", 40, paging=WINDOW, is_pinned=is_pinned)
        run_steps(scheduler, 1)
        assert [pool.cache.find(block_hash) for block_hash in seq.hashes()[:3]] == found


def test_what_a_pinned_prompt_gave_back_can_be_found() -> None:
    scheduler, _ = make_scheduler(20, paging=WINDOW, budget=8)
    seq = add(scheduler, "p", 24, paging=WINDOW, is_pinned=True)
    run_steps(scheduler, 3)
    scheduler.remove(0.0, seq)
    hit = add(scheduler, "b", 14, paging=WINDOW)
    plan_step(scheduler)
    assert hit.num_cached_tokens == 12


def test_a_pinned_prompt_does_not_wait_for_a_cached_prefix_that_others_keep() -> None:
    scheduler, pool = make_scheduler(WINDOW.max_blocks(40, 8), paging=WINDOW, budget=8)
    first = add(scheduler, "a", 13, paging=WINDOW)
    run_steps(scheduler, 2)
    scheduler.remove(0.0, first)
    seq = add(scheduler, "p", 40, paging=WINDOW, is_pinned=True)
    plan = plan_step(scheduler)
    assert (seq.num_cached_tokens, pool.num_available) == (12, 0)
    pool.share(seq.tables.held()[:2])
    while not plan.slices[0].samples:
        finish_step(scheduler, plan)
        plan = plan_step(scheduler)
    assert plan.slices[0].start == 36
    pool.check_invariants()
