"""Prompts with a common prefix that come together: whose blocks are computed once, and by whom."""

from __future__ import annotations

import pytest

from baton_core.blocks.block_hash import root_hash
from baton_core.kv_layout.paging import Paging
from baton_core.worker.sequence import Sequence
from baton_core.worker.step_plan import SeqId
from baton_worker.core.scheduler import Scheduler
from tests.builders import BLOCK_SIZE, ONE_GROUP, make_identity, make_params, make_sequence
from tests.unit.core.scheduling import finish_step, make_scheduler, plan_step, run_steps, shape

MIXED = Paging(block_size=BLOCK_SIZE, windows=(None, 6))
PREFIX = tuple(range(1, 101))


def branch(number: int, *, paging: Paging = ONE_GROUP, **changes: bool) -> Sequence:
    """A prompt of the common prefix and a tail of its own."""
    own = tuple(500 + 10 * number + offset for offset in range(3))
    return Sequence(
        SeqId(f"{number:02}", 0),
        PREFIX + own,
        make_params(max_tokens=1),
        paging=paging,
        root=root_hash(make_identity()),
        arrival_s=float(number),
        **changes,
    )


def run_to_first_tokens(scheduler: Scheduler, seqs: list[Sequence]) -> int:
    """End each sequence at its first token; returns the number of tokens computed for all."""
    num_computed = 0
    alive = set(seqs)
    while alive:
        plan = plan_step(scheduler)
        num_computed += sum(piece.num_scheduled_tokens for piece in plan.slices)
        finish_step(scheduler, plan)
        for seq in [seq for seq in alive if seq.num_output_tokens]:
            alive.remove(seq)
            scheduler.remove(0.0, seq)
    return num_computed


@pytest.mark.parametrize("budget", [16, 64, 2048])
@pytest.mark.parametrize("paging", [ONE_GROUP, MIXED], ids=["one_kind", "two_kinds"])
@pytest.mark.parametrize("is_pinned", [False, True], ids=["here", "for_a_puller"])
def test_the_prefix_of_a_batch_is_computed_once(budget: int, paging: Paging, is_pinned: bool) -> None:
    scheduler, pool = make_scheduler(2000, budget=budget, max_num_seqs=16, paging=paging)
    seqs = [branch(number, paging=paging, is_pinned=is_pinned) for number in range(16)]
    for seq in seqs:
        scheduler.add(seq)
    assert run_to_first_tokens(scheduler, seqs) == len(PREFIX) + 16 * 3
    assert [seq.num_cached_tokens for seq in seqs] == [0] + [100] * 15
    assert pool.num_used == 0


def test_those_that_share_wait_one_step_and_then_join_in_order() -> None:
    scheduler, _ = make_scheduler(200, budget=200)
    for number in range(3):
        scheduler.add(branch(number))
    plan = plan_step(scheduler)
    assert shape(plan) == [("00", 0, 103)]
    finish_step(scheduler, plan)
    assert shape(plan_step(scheduler)) == [("00", 103, 1), ("01", 100, 3), ("02", 100, 3)]


def test_a_prefix_is_waited_for_as_long_as_it_is_computed() -> None:
    scheduler, _ = make_scheduler(200, budget=40)
    for number in range(2):
        scheduler.add(branch(number))
    plans = []
    for _ in range(3):
        plan = plan_step(scheduler)
        plans.append(shape(plan))
        finish_step(scheduler, plan)
    assert plans == [[("00", 0, 40)], [("00", 40, 40)], [("00", 80, 23)]]
    assert shape(plan_step(scheduler)) == [("00", 103, 1), ("01", 100, 3)]


def test_others_do_not_wait_behind_those_that_share() -> None:
    scheduler, _ = make_scheduler(200, budget=120)
    scheduler.add(branch(0))
    scheduler.add(branch(1))
    scheduler.add(make_sequence("other", prompt=5, first=300, arrival_s=9.0))
    assert shape(plan_step(scheduler)) == [("00", 0, 103), ("other", 0, 5)]


def test_when_the_one_that_computes_is_cancelled_the_next_one_computes() -> None:
    scheduler, _ = make_scheduler(200, budget=40)
    first, *others = (branch(number) for number in range(3))
    for seq in (first, *others):
        scheduler.add(seq)
    run_steps(scheduler, 1)
    scheduler.remove(0.0, first)
    assert shape(plan_step(scheduler)) == [("01", 40, 40)]


def test_when_the_one_that_computes_is_preempted_it_comes_first_again() -> None:
    scheduler, pool = make_scheduler(30, budget=40)
    for number in range(2):
        scheduler.add(branch(number))
    run_steps(scheduler, 1)
    taken = pool.allocate(15) or []
    assert scheduler.schedule(0.0) is None
    assert (scheduler.num_preemptions, scheduler.num_waiting) == (1, 2)
    pool.release(taken)
    assert shape(plan_step(scheduler)) == [("00", 40, 40)]


def test_a_prompt_that_has_its_own_blocks_waits_for_nobody() -> None:
    scheduler, pool = make_scheduler(200, budget=110)
    imported = branch(1)
    imported.tables.fill(0, 0, pool.allocate(26) or [])
    imported.num_computed_tokens = imported.num_prompt_tokens
    imported.token_ids.append(500)
    scheduler.add(branch(0))
    scheduler.add(imported)
    assert shape(plan_step(scheduler)) == [("00", 0, 103), ("01", 103, 1)]


def test_nobody_waits_for_a_prefix_that_a_less_important_prompt_computes() -> None:
    scheduler, _ = make_scheduler(200, budget=8)
    scheduler.add(make_sequence("low", prompt=40, priority=9))
    run_steps(scheduler, 1)
    scheduler.add(make_sequence("urgent", prompt=40, arrival_s=1.0))
    scheduler.add(make_sequence("medium", prompt=8, first=300, arrival_s=2.0, priority=5))
    assert shape(plan_step(scheduler)) == [("urgent", 8, 8)]


def test_a_less_important_prompt_waits_for_the_prefix_of_a_more_important_one() -> None:
    scheduler, _ = make_scheduler(200, budget=64)
    scheduler.add(make_sequence("low", prompt=40, priority=9))
    scheduler.add(make_sequence("high", prompt=40, arrival_s=1.0))
    assert shape(plan_step(scheduler)) == [("high", 0, 40)]
