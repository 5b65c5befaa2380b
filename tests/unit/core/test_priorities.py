"""Priorities order who comes first and who gives way: lower values first, then first come."""

from __future__ import annotations

import pytest

from baton_core.worker.sequence import Sequence, SequenceState
from baton_worker.core.in_flight_prefixes import InFlightPrefixes
from baton_worker.core.scheduler_config import SchedulerConfig, SchedulingPolicy
from tests.builders import make_request, make_sequence
from tests.unit.core.scheduling import (
    add_siblings,
    finish_step,
    give_blocks,
    make_scheduler,
    plan_step,
    run_steps,
    shape,
)
from tests.unit.core.workers import make_worker


def test_waiting_sequences_are_admitted_by_priority_then_by_arrival() -> None:
    scheduler, _ = make_scheduler()
    for number, (name, priority) in enumerate((("a", 5), ("b", 0), ("c", -1), ("d", 0))):
        scheduler.add(make_sequence(name, prompt=2, first=100 * number, arrival_s=number, priority=priority))
    assert [name for name, _, _ in shape(plan_step(scheduler))] == ["c", "b", "d", "a"]


def test_a_more_important_request_takes_a_place_among_those_that_run() -> None:
    scheduler, _ = make_scheduler(max_num_seqs=2)
    early = make_sequence("early", prompt=3, priority=5)
    late = make_sequence("late", prompt=3, first=100, arrival_s=1.0, priority=5)
    scheduler.add(early)
    scheduler.add(late)
    run_steps(scheduler, 1)
    scheduler.add(make_sequence("urgent", prompt=3, first=200, arrival_s=2.0))
    assert shape(plan_step(scheduler)) == [("early", 3, 1), ("urgent", 0, 3)]
    assert (late.state, late.tables[0], scheduler.num_preemptions) == (SequenceState.WAITING, [], 1)


def test_a_more_important_request_takes_the_blocks_it_needs_and_no_more() -> None:
    scheduler, pool = make_scheduler(6)
    for number, name in enumerate("abc"):
        scheduler.add(make_sequence(name, prompt=6, first=100 * number, arrival_s=number, priority=1))
    run_steps(scheduler, 1)
    urgent = make_sequence("urgent", prompt=8, first=900, arrival_s=9.0)
    scheduler.add(urgent)
    plan = plan_step(scheduler)
    assert shape(plan) == [("a", 6, 1), ("b", 6, 1), ("urgent", 0, 8)]
    assert sorted(urgent.tables[0]) == [4, 5]
    pool.check_invariants()


def test_a_less_important_one_that_waits_with_blocks_gives_them_up() -> None:
    scheduler, pool = make_scheduler(6)
    scheduler.add(make_sequence("running", prompt=6))
    run_steps(scheduler, 1)
    holder = make_sequence("holder", prompt=15, first=100, arrival_s=1.0, priority=1)
    give_blocks(pool, holder, 4)
    urgent = make_sequence("urgent", prompt=12, first=200, arrival_s=2.0)
    scheduler.add(holder)
    scheduler.add(urgent)
    assert shape(plan_step(scheduler)) == [("running", 6, 1), ("urgent", 0, 12)]
    assert (holder.tables[0], holder.num_computed_tokens) == ([], 0)


def test_for_a_place_nobody_gives_up_blocks_while_waiting() -> None:
    scheduler, pool = make_scheduler(max_num_seqs=1)
    scheduler.add(make_sequence("running", prompt=6, priority=1))
    run_steps(scheduler, 1)
    holder = make_sequence("holder", prompt=8, first=100, arrival_s=1.0, priority=2)
    give_blocks(pool, holder, 2)
    scheduler.add(holder)
    scheduler.add(make_sequence("urgent", prompt=4, first=200, arrival_s=2.0))
    assert shape(plan_step(scheduler)) == [("urgent", 0, 4)]
    assert len(holder.tables[0]) == 2


def test_nothing_is_preempted_for_a_request_that_would_not_fit_even_so() -> None:
    scheduler, _ = make_scheduler(6)
    scheduler.add(make_sequence("important", prompt=14))
    scheduler.add(make_sequence("other", prompt=4, first=100, arrival_s=1.0, priority=7))
    run_steps(scheduler, 1)
    scheduler.add(make_sequence("big", prompt=12, first=200, arrival_s=2.0, priority=3))
    assert shape(plan_step(scheduler)) == [("important", 14, 1), ("other", 4, 1)]
    assert scheduler.num_preemptions == 0


@pytest.mark.parametrize("priority", [0, 4])
def test_nobody_gives_way_to_an_equal_or_a_less_important_one(priority: int) -> None:
    scheduler, _ = make_scheduler(4, max_num_seqs=2)
    for number, name in enumerate("ab"):
        scheduler.add(make_sequence(name, prompt=6, first=100 * number, arrival_s=number))
    run_steps(scheduler, 1)
    scheduler.add(make_sequence("late", prompt=4, first=900, arrival_s=9.0, priority=priority))
    assert shape(plan_step(scheduler)) == [("a", 6, 1), ("b", 6, 1)]
    assert scheduler.num_preemptions == 0


def test_a_pinned_prompt_gives_way_to_nobody() -> None:
    scheduler, _ = make_scheduler(6, budget=8)
    pinned = make_sequence("pinned", prompt=24, priority=9, is_pinned=True)
    scheduler.add(pinned)
    run_steps(scheduler, 1)
    scheduler.add(make_sequence("urgent", prompt=4, first=100, arrival_s=1.0))
    assert shape(plan_step(scheduler)) == [("pinned", 8, 8)]
    assert pinned.state is SequenceState.RUNNING


def test_a_more_important_prompt_is_computed_before_the_rest_of_a_running_one() -> None:
    scheduler, _ = make_scheduler(32, budget=8)
    scheduler.add(make_sequence("long", prompt=40, priority=1))
    run_steps(scheduler, 1)
    scheduler.add(make_sequence("urgent", prompt=6, first=100, arrival_s=1.0))
    scheduler.add(make_sequence("equal", prompt=2, first=200, arrival_s=2.0, priority=1))
    assert shape(plan_step(scheduler)) == [("urgent", 0, 6), ("long", 8, 2)]


def test_the_least_important_is_preempted_first_when_blocks_run_out() -> None:
    scheduler, _ = make_scheduler(4)
    for number, priority in enumerate((3, 0)):
        seq = make_sequence(str(priority), prompt=8, first=100 * number, arrival_s=number, priority=priority)
        scheduler.add(seq)
    run_steps(scheduler, 1)
    assert shape(plan_step(scheduler)) == [("0", 8, 1)]


def test_no_room_is_made_for_a_request_that_waits_for_a_prefix() -> None:
    scheduler, _ = make_scheduler(32, budget=8, max_num_seqs=2)
    scheduler.add(make_sequence("first", prompt=24))
    scheduler.add(make_sequence("other", prompt=4, first=100, arrival_s=0.5, priority=1))
    plan = plan_step(scheduler)
    finish_step(scheduler, plan)
    scheduler.add(make_sequence("same", prompt=24, arrival_s=1.0))
    finish_step(scheduler, plan_step(scheduler))
    assert scheduler.num_preemptions == 0


def test_siblings_get_the_blocks_into_which_they_copy_their_tail() -> None:
    scheduler, pool = make_scheduler(4)
    low = make_sequence("low", prompt=6, priority=9)
    scheduler.add(low)
    run_steps(scheduler, 1)
    add_siblings(scheduler, pool, make_sequence("urgent", prompt=6, first=100, arrival_s=1.0), 2)
    plan = plan_step(scheduler)
    assert shape(plan) == [("urgent", 6, 1), ("urgent", 6, 1)]
    assert plan.block_copies == ((3, 1), (3, 0))
    assert low.state is SequenceState.WAITING


def test_making_room_looks_at_those_that_run_once_for_all_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler, _ = make_scheduler(64, budget=16)
    for name, priority in (("low", 9), ("first", 0)):
        scheduler.add(make_sequence(name, prompt=59, first=priority, priority=priority))
        run_steps(scheduler, 1)
    for number in range(20):
        scheduler.add(make_sequence(f"{number:02}", prompt=59, first=0, arrival_s=1.0))
    looked_at: list[str] = []
    add = InFlightPrefixes.add

    def count(frontier: InFlightPrefixes, seq: Sequence) -> None:
        looked_at.append(seq.seq_id.request_id)
        add(frontier, seq)

    monkeypatch.setattr(InFlightPrefixes, "add", count)
    assert shape(plan_step(scheduler)) == [("first", 16, 16)]
    assert sorted(looked_at) == ["first", "low"]


# --- nobody gives way in vain ---


def test_blocks_that_others_share_are_counted_once() -> None:
    scheduler, pool = make_scheduler(8)
    leader = make_sequence("low", prompt=16, priority=9)
    give_blocks(pool, leader, 4)
    sibling = leader.fork(1)
    sibling.token_ids.append(500)
    pool.share(sibling.tables.held())
    scheduler.add(leader)
    scheduler.add(sibling)
    run_steps(scheduler, 1)
    pool.allocate(2)
    scheduler.add(make_sequence("urgent", prompt=28, first=100, arrival_s=1.0))
    assert [name for name, _, _ in shape(plan_step(scheduler))] == ["low", "low"]
    assert scheduler.num_preemptions == 0


def test_blocks_under_a_lease_are_not_counted() -> None:
    scheduler, pool = make_scheduler(4)
    low = make_sequence("low", prompt=6, priority=9)
    scheduler.add(low)
    run_steps(scheduler, 1)
    pool.lease(low.tables.held())
    scheduler.add(make_sequence("urgent", prompt=14, first=100, arrival_s=1.0))
    assert shape(plan_step(scheduler)) == [("low", 6, 1)]
    assert scheduler.num_preemptions == 0


def test_blocks_of_the_prefix_in_common_are_not_counted() -> None:
    scheduler, pool = make_scheduler(5)
    scheduler.add(make_sequence("low", prompt=13, priority=9))
    run_steps(scheduler, 1)
    pool.allocate(1)
    scheduler.add(make_sequence("urgent", prompt=20, arrival_s=1.0))
    assert shape(plan_step(scheduler)) == [("low", 13, 1)]
    assert scheduler.num_preemptions == 0


def test_nobody_gives_up_blocks_for_a_request_without_a_place() -> None:
    scheduler, pool = make_scheduler(6, max_num_seqs=1)
    scheduler.add(make_sequence("important", prompt=6))
    run_steps(scheduler, 1)
    holder = make_sequence("holder", prompt=15, first=100, arrival_s=1.0, priority=9)
    give_blocks(pool, holder, 4)
    scheduler.add(holder)
    scheduler.add(make_sequence("urgent", prompt=8, first=200, arrival_s=2.0))
    assert shape(plan_step(scheduler)) == [("important", 6, 1)]
    assert len(holder.tables[0]) == 4


def test_room_is_made_for_one_of_two_long_prompts_where_one_may_be_computed() -> None:
    scheduler, _ = make_scheduler(64, max_num_seqs=2, long_prefill_token_threshold=8)
    for number, name in enumerate("ab"):
        scheduler.add(make_sequence(name, prompt=3, first=100 * number, arrival_s=number, priority=9))
    run_steps(scheduler, 1)
    for number, name in enumerate("cd"):
        scheduler.add(make_sequence(name, prompt=30, first=500 + 100 * number, arrival_s=5.0))
    assert shape(plan_step(scheduler)) == [("a", 3, 1), ("c", 0, 8)]


# --- relatives ---


def test_siblings_have_the_priority_of_their_request() -> None:
    scheduler, pool = make_scheduler()
    leader = make_sequence(prompt=6, priority=4)
    give_blocks(pool, leader, 2)
    assert leader.fork(1).priority == 4
    assert scheduler.num_waiting == 0


# --- at a worker ---


@pytest.mark.parametrize(
    ("policy", "first"), [(SchedulingPolicy.FCFS, "p2"), (SchedulingPolicy.PRIORITY, "p1")]
)
def test_a_worker_follows_the_priorities_of_its_requests_where_its_policy_says_so(
    policy: SchedulingPolicy, first: str
) -> None:
    config = SchedulerConfig(policy=policy, max_num_seqs=1, max_num_batched_tokens=8)
    worker = make_worker(scheduler=config)
    for number, priority in enumerate((2, 1)):
        worker.generate(make_request(f"p{priority}", first=100 * number, priority=priority), now=number)
    assert shape(worker.plan(2.0)) == [(first, 0, 8)]
