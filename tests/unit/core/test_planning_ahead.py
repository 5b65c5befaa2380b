"""A step that is planned while the one before it runs: what it computes, and what it leaves to be decided."""

from __future__ import annotations

from typing import Any

import pytest

from baton_core.errors import ErrorCode
from baton_core.kv_layout.paging import NO_BLOCK, Paging
from baton_core.sessions.router_messages import Failed, TokenBatch
from baton_core.worker.sequence import Sequence, SequenceState
from baton_core.worker.step_plan import SAMPLED, Followed, StepPlan
from baton_core.worker.worker_events import StepDone, StepFailed
from baton_worker.core.scheduler import Scheduler
from tests.builders import (
    BLOCK_SIZE,
    EOS_TOKEN_ID,
    make_request,
    make_sequence,
    make_worker_config,
    step_result,
)
from tests.unit.core.scheduling import finish_step, give_blocks, make_scheduler, plan_step, run_steps, shape
from tests.unit.core.workers import Worker


def plan_ahead(scheduler: Scheduler, *ending: Sequence) -> StepPlan | None:
    return scheduler.schedule_ahead(0.0, ending.__contains__)


def make_worker(**changes: Any) -> Worker:
    return Worker(make_worker_config(plans_ahead=True, **changes))


def plan_both(worker: Worker, *, now: float = 0.0) -> tuple[StepPlan, StepPlan]:
    first, second = worker.core.schedule(now), worker.core.schedule(now)
    assert first is not None
    assert second is not None
    assert worker.core.schedule(now) is None, "a third one"
    return first, second


# --- what it computes ---


def test_it_computes_the_tokens_that_the_step_before_draws() -> None:
    scheduler, _ = make_scheduler()
    scheduler.add(make_sequence("a", prompt=7, seed=5))
    scheduler.add(make_sequence("b", prompt=4, first=100, arrival_s=1.0))
    first = plan_step(scheduler)
    plan = plan_ahead(scheduler)
    assert plan is not None
    assert (plan.step_id, plan.follows) == (2, Followed(step_id=first.step_id, rows=(0, 1)))
    assert [piece.token_ids for piece in plan.slices] == [(SAMPLED,), (SAMPLED,)]
    assert shape(plan) == [("a", 7, 1), ("b", 4, 1)]
    assert [piece.samples[0].position for piece in plan.slices] == [8, 5]
    assert plan.slices[0].samples[0].seed == first.slices[0].samples[0].seed
    assert [piece.block_tables for piece in plan.slices] == [((0, 1),), ((2, 3),)]


def test_it_is_as_the_step_would_be_that_knows_the_tokens() -> None:
    ahead, _ = make_scheduler()
    behind, _ = make_scheduler()
    for scheduler in (ahead, behind):
        scheduler.add(make_sequence("a", prompt=6, temperature=1.0))
        run_steps(scheduler, 2)
    finish_step(behind, plan_step(behind))
    plan_step(ahead)
    known, unknown = plan_step(behind), plan_ahead(ahead)
    assert unknown is not None
    (one,), (other,) = known.slices, unknown.slices
    assert (one.start, one.block_tables, one.samples) == (other.start, other.block_tables, other.samples)


def test_steps_follow_one_another_for_as_long_as_nothing_is_to_be_decided() -> None:
    scheduler, pool = make_scheduler()
    seq = make_sequence(prompt=3)
    scheduler.add(seq)
    plans = [plan_step(scheduler)]
    for _ in range(2 * BLOCK_SIZE):
        plan = plan_ahead(scheduler)
        assert plan is not None
        plans.append(plan)
        finish_step(scheduler, plans[-2])
    assert [shape(plan)[0][1] for plan in plans[1:]] == list(range(3, 3 + 2 * BLOCK_SIZE))
    assert pool.num_used == len(plans[-1].slices[0].block_tables[0]) == 3


def test_a_block_that_the_step_in_flight_sees_last_is_not_in_it() -> None:
    paging = Paging(block_size=BLOCK_SIZE, windows=(5,))
    scheduler, _ = make_scheduler(paging=paging)
    scheduler.add(make_sequence(prompt=2 * BLOCK_SIZE, paging=paging))
    (first,) = plan_step(scheduler).slices
    plan = plan_ahead(scheduler)
    assert plan is not None
    ((table,),) = [piece.block_tables for piece in plan.slices]
    assert table == (NO_BLOCK, *first.block_tables[0][1:], 2)


def test_whoever_ends_or_has_ended_is_left_out() -> None:
    scheduler, pool = make_scheduler()
    seqs = [make_sequence(name, prompt=2, first=100 * row) for row, name in enumerate("abcd")]
    for seq in seqs:
        scheduler.add(seq)
    first = plan_step(scheduler)
    scheduler.remove(0.0, seqs[0])
    plan = plan_ahead(scheduler, seqs[2])
    assert plan is not None
    assert shape(plan) == [("b", 2, 1), ("d", 2, 1)]
    assert plan.follows == Followed(step_id=first.step_id, rows=(1, 3))
    finish_step(scheduler, first)
    scheduler.remove(0.0, seqs[2])
    assert (seqs[0].state, seqs[2].state) == (SequenceState.FINISHED, SequenceState.FINISHED)
    assert pool.num_used == 2


# --- what it leaves to be decided ---


def test_there_is_none_behind_no_step_and_none_behind_two() -> None:
    scheduler, _ = make_scheduler()
    scheduler.add(make_sequence())
    assert plan_ahead(scheduler) is None
    plan_step(scheduler)
    assert plan_ahead(scheduler) is not None
    assert plan_ahead(scheduler) is None


def test_there_is_none_where_all_end() -> None:
    scheduler, _ = make_scheduler()
    seq = make_sequence()
    scheduler.add(seq)
    plan_step(scheduler)
    assert plan_ahead(scheduler, seq) is None


def test_a_prompt_computed_in_part_goes_on_with_a_whole_step() -> None:
    scheduler, _ = make_scheduler(budget=4)
    scheduler.add(make_sequence("a", prompt=6))
    finish_step(scheduler, plan_step(scheduler))
    assert plan_ahead(scheduler) is None
    plan_step(scheduler)
    assert plan_ahead(scheduler) is not None


def test_several_first_tokens_are_taken_before_their_sequences_go_on() -> None:
    scheduler, _ = make_scheduler()
    scheduler.add(make_sequence(n=2))
    plan_step(scheduler)
    assert plan_ahead(scheduler) is None


def test_whoever_waits_gets_a_free_seat_first() -> None:
    scheduler, _ = make_scheduler(max_num_seqs=2)
    scheduler.add(make_sequence("a"))
    plan_step(scheduler)
    scheduler.add(make_sequence("b", first=100, arrival_s=1.0))
    assert plan_ahead(scheduler) is None


def test_without_a_seat_nobody_that_waits_matters_unless_it_is_more_important() -> None:
    scheduler, _ = make_scheduler(max_num_seqs=1)
    scheduler.add(make_sequence("a"))
    plan = plan_step(scheduler)
    scheduler.add(make_sequence("b", first=100, arrival_s=1.0))
    assert plan_ahead(scheduler) is not None
    finish_step(scheduler, plan)
    scheduler.add(make_sequence("c", first=200, arrival_s=2.0, priority=-1))
    assert plan_ahead(scheduler) is None


def test_a_sequence_without_budget_is_not_passed_over_again() -> None:
    scheduler, pool = make_scheduler(budget=1)
    for row, name in enumerate("ab"):
        seq = make_sequence(name, prompt=2, first=100 * row)
        give_blocks(pool, seq, 1)
        scheduler.add(seq)
    assert len(plan_step(scheduler).slices) == 1
    assert plan_ahead(scheduler) is None


def test_nobody_is_preempted_for_it() -> None:
    scheduler, pool = make_scheduler(4)
    seq = make_sequence(prompt=BLOCK_SIZE)
    scheduler.add(seq)
    plan = plan_step(scheduler)
    taken = pool.allocate(3)
    assert taken is not None
    assert plan_ahead(scheduler) is None
    pool.release(taken)
    assert plan_ahead(scheduler) is not None
    finish_step(scheduler, plan)
    assert scheduler.num_preemptions == 0


def test_draws_by_rules_need_the_token_before() -> None:
    worker = make_worker()
    worker.generate(make_request(presence_penalty=1.0, max_tokens=5))
    assert worker.core.schedule(0.0) is not None
    assert worker.core.schedule(0.0) is None


@pytest.mark.parametrize("changes", [{"max_tokens": 2}, {"max_tokens": None}])
def test_no_token_is_computed_behind_the_last_one(changes: dict[str, Any]) -> None:
    prompt = 6 if changes["max_tokens"] else 14
    worker = make_worker(num_blocks=4, max_model_len=16)
    worker.generate(make_request(prompt=prompt, ignore_eos=True, **changes))
    first, second = plan_both(worker)
    worker.feed(StepDone(result=step_result(first)))
    assert worker.core.schedule(0.0) is None
    worker.feed(StepDone(result=step_result(second)))
    assert worker.core.num_requests == worker.core.pool.num_used == 0


def test_a_prompt_for_another_worker_ends_with_its_first_token() -> None:
    worker = make_worker()
    worker.prefill(make_request(max_tokens=9))
    assert worker.core.schedule(0.0) is not None
    assert worker.core.schedule(0.0) is None


def test_nothing_is_planned_ahead_unless_the_worker_does() -> None:
    worker = Worker(make_worker_config())
    worker.generate(make_request(max_tokens=9))
    assert worker.core.schedule(0.0) is not None
    assert worker.core.schedule(0.0) is None


# --- ends ---


def test_a_stop_found_late_drops_the_token_behind_it_and_then_lets_go_of_the_blocks() -> None:
    worker = make_worker()
    worker.generate(make_request(max_tokens=9))
    first, second = plan_both(worker)
    worker.feed(StepDone(result=step_result(first)))
    third = worker.plan()
    worker.feed(StepDone(result=step_result(second, EOS_TOKEN_ID)))
    (batch,) = worker.heard(TokenBatch)
    assert [(one.token_ids, one.finish_reason) for one in batch.outputs] == [((EOS_TOKEN_ID,), "stop")]
    assert worker.core.num_requests == 0
    assert worker.core.pool.num_used == len(third.slices[0].block_tables[0])
    told = worker.take_told()
    worker.feed(StepDone(result=step_result(third)))
    assert told
    assert (worker.take_told(), worker.core.pool.num_used) == ([], 0)


def test_a_cancel_waits_for_both_steps() -> None:
    worker = make_worker()
    worker.generate(make_request(max_tokens=9))
    first, second = plan_both(worker)
    worker.cancel("r")
    for plan in (first, second):
        assert worker.core.pool.num_used
        worker.feed(StepDone(result=step_result(plan)))
    assert (worker.told, worker.core.pool.num_used) == ([], 0)


@pytest.mark.parametrize("is_second_whole", [True, False])
def test_a_failed_step_takes_the_one_behind_it_along(is_second_whole: bool) -> None:
    worker = make_worker()
    worker.generate(make_request(max_tokens=9))
    _, second = plan_both(worker)
    worker.feed(StepFailed(message="out of memory"))
    assert worker.told == [Failed(request_id="r", code=ErrorCode.INTERNAL, message="out of memory")]
    assert worker.core.pool.num_used
    done = StepDone(result=step_result(second))
    worker.feed(done if is_second_whole else StepFailed(message="out of memory"))
    assert (len(worker.told), worker.core.pool.num_used) == (1, 0)


def test_a_step_counts_from_the_end_of_the_one_before_it_and_a_failed_one_not_at_all() -> None:
    worker = make_worker()
    worker.generate(make_request(max_tokens=9))
    plans = [*plan_both(worker, now=1.0)]
    for now in (5.0, 7.0, 9.0, 11.0):
        worker.feed(StepDone(result=step_result(plans.pop(0))), now=now)
        assert worker.core.load(now + 1.0).step_age_s == 1.0
        plans.append(worker.plan(now))
    for now in (13.0, 15.0):
        worker.feed(StepDone(result=step_result(plans.pop(0))), now=now)
    assert worker.core.rates.rates.decode_step_s == 2.0
    assert worker.core.load(16.0).step_age_s == 0.0
    num_decode_steps = worker.core.rates.rates.num_decode_steps
    worker.plan(16.0)
    worker.feed(StepFailed(message="out of memory"), now=90.0)
    assert worker.core.rates.rates.decode_step_s == 2.0
    assert worker.core.rates.rates.num_decode_steps == num_decode_steps
