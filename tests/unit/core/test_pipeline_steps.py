"""Several steps in flight, one for each stage of a pipeline: they divide sequences and share the pool."""

from __future__ import annotations

from baton_core.kv_layout.paging import Paging
from baton_core.sessions.router_messages import Failed, TokenBatch
from baton_core.worker.sequence import SequenceState
from baton_core.worker.step_plan import Followed, StepPlan
from baton_core.worker.worker_events import StepDone, StepFailed
from baton_worker.core.scheduler import Scheduler
from tests.builders import BLOCK_SIZE, make_request, make_sequence, step_result
from tests.unit.core.scheduling import finish_step, make_scheduler, plan_step, shape
from tests.unit.core.workers import make_worker


def names(plan: StepPlan | None) -> str:
    """The sequences of a step, in order."""
    assert plan is not None
    return "".join(name for name, _, _ in shape(plan))


def add(scheduler: Scheduler, arriving: str, *, prompt: int = 2, priority: int = 0) -> None:
    for name in arriving:
        first = 100 * ord(name)
        scheduler.add(make_sequence(name, prompt=prompt, first=first, arrival_s=ord(name), priority=priority))


def test_steps_divide_the_sequences_evenly_in_their_order() -> None:
    scheduler, _ = make_scheduler(num_stages=3)
    add(scheduler, "abcdefg")
    plans = [plan_step(scheduler) for _ in range(3)]
    assert [names(plan) for plan in plans] == ["abc", "def", "g"]
    assert scheduler.is_full
    finish_step(scheduler, plans[0])
    assert shape(plan_step(scheduler)) == [("a", 2, 1), ("b", 2, 1), ("c", 2, 1)]


def test_after_some_have_ended_the_steps_are_even_again() -> None:
    scheduler, _ = make_scheduler(num_stages=2)
    add(scheduler, "abcdef")
    first, second = plan_step(scheduler), plan_step(scheduler)
    for seq in [seq for seq in scheduler.in_flight.first.num_tokens if seq.seq_id.request_id in "bc"]:
        scheduler.remove(0.0, seq)
    finish_step(scheduler, first)
    third = plan_step(scheduler)
    finish_step(scheduler, second)
    fourth = plan_step(scheduler)
    finish_step(scheduler, third)
    assert [names(plan) for plan in (third, fourth, plan_step(scheduler))] == ["a", "de", "af"]


def test_those_that_find_no_block_leave_the_others_divided() -> None:
    scheduler, _ = make_scheduler(4, num_stages=2)
    add(scheduler, "abcd", prompt=3)
    add(scheduler, "w", prompt=4 * BLOCK_SIZE - 1)
    for expected in ("abc", "d"):
        assert names(plan_step(scheduler)) == expected
    finish_step(scheduler, scheduler.in_flight.first.plan)
    assert names(plan_step(scheduler)) == "ab"


def test_one_that_lacks_a_block_waits_for_those_of_a_step_in_flight() -> None:
    scheduler, pool = make_scheduler(2, num_stages=2)
    add(scheduler, "ab", prompt=BLOCK_SIZE)
    first, second = plan_step(scheduler), plan_step(scheduler)
    finish_step(scheduler, first)
    assert scheduler.schedule(0.0) is None, "the block that is needed is in use"
    finish_step(scheduler, second)
    assert shape(plan_step(scheduler)) == [("a", BLOCK_SIZE, 1)]
    assert (scheduler.num_preemptions, scheduler.num_waiting) == (1, 1)
    pool.check_invariants()


def test_a_more_important_one_takes_no_place_of_a_step_in_flight() -> None:
    scheduler, _ = make_scheduler(max_num_seqs=2, num_stages=2)
    add(scheduler, "a")
    add(scheduler, "b", priority=5)
    first, second = plan_step(scheduler), plan_step(scheduler)
    add(scheduler, "u")
    finish_step(scheduler, first)
    assert names(plan_step(scheduler)) == "a"
    scheduler.check_invariants()
    finish_step(scheduler, second)
    assert names(plan_step(scheduler)) == "u"


def test_chunks_of_a_prompt_follow_each_other_where_there_is_nobody_else() -> None:
    scheduler, pool = make_scheduler(budget=4, num_stages=3)
    add(scheduler, "a", prompt=10)
    plans = [plan_step(scheduler) for _ in range(3)]
    assert [shape(plan) for plan in plans] == [[("a", 0, 4)], [("a", 4, 4)], [("a", 8, 2)]]
    assert [len(plan.slices[0].samples) for plan in plans] == [0, 0, 1]
    finish_step(scheduler, plans[0])
    assert scheduler.schedule(0.0) is None, "the first token is not drawn yet"
    scheduler.check_invariants()
    for plan in plans[1:]:
        finish_step(scheduler, plan)
    assert shape(plan_step(scheduler)) == [("a", 10, 1)]
    pool.check_invariants()


def test_others_come_before_a_chunk_behind_one_in_flight() -> None:
    scheduler, _ = make_scheduler(budget=4, num_stages=2)
    add(scheduler, "a", prompt=10)
    first = plan_step(scheduler)
    add(scheduler, "b", prompt=3)
    second = plan_step(scheduler)
    assert shape(second) == [("b", 0, 3)], "a step has no more than its share of the sequences"
    finish_step(scheduler, first)
    assert shape(plan_step(scheduler)) == [("a", 4, 4)]


def test_windows_let_no_chunk_follow_one_in_flight() -> None:
    scheduler, _ = make_scheduler(budget=4, num_stages=2, paging=Paging(block_size=BLOCK_SIZE, windows=(6,)))
    add(scheduler, "a", prompt=10)
    assert names(plan_step(scheduler)) == "a"
    assert scheduler.schedule(0.0) is None


def test_a_prompt_that_ends_with_chunks_in_flight_keeps_its_blocks_until_the_last_is_back() -> None:
    for num_failing in range(3):
        scheduler, pool = make_scheduler(budget=4, num_stages=2)
        add(scheduler, "a", prompt=10)
        first, second = plan_step(scheduler), plan_step(scheduler)
        (seq,) = scheduler.in_flight.sequences
        if num_failing:
            assert scheduler.fail_step(0.0) == [seq]
        else:
            scheduler.remove(0.0, seq)
            finish_step(scheduler, first)
        assert (seq.state, pool.num_used > 0) == (SequenceState.DRAINING, True)
        if num_failing > 1:
            assert scheduler.fail_step(0.0) == [], "its end is told once"
        else:
            finish_step(scheduler, second)
        assert (seq.state, pool.num_used) == (SequenceState.FINISHED, 0)
        scheduler.check_invariants()


def test_a_sequence_that_ends_keeps_its_blocks_until_its_own_step_is_back() -> None:
    scheduler, pool = make_scheduler(num_stages=2)
    add(scheduler, "ab")
    first, second = plan_step(scheduler), plan_step(scheduler)
    (seq,) = (seq for seq in scheduler.in_flight.sequences if seq.seq_id.request_id == "b")
    scheduler.remove(0.0, seq)
    finish_step(scheduler, first)
    assert (seq.state, pool.num_used) == (SequenceState.DRAINING, 2)
    finish_step(scheduler, second)
    assert (seq.state, pool.num_used) == (SequenceState.FINISHED, 1)


def test_a_lone_sequence_is_planned_ahead_where_the_config_says_so() -> None:
    worker = make_worker(plans_ahead=True, num_stages=2)
    worker.generate(make_request("a", prompt=3, max_tokens=8))
    first, ahead = worker.core.schedule(0.0), worker.core.schedule(0.0)
    assert first is not None
    assert ahead is not None
    assert ahead.follows == Followed(step_id=first.step_id, rows=(0,))
    assert worker.core.schedule(0.0) is None
    worker.feed(StepDone(result=step_result(first)))
    worker.generate(make_request("b", prompt=3, first=90, max_tokens=8))
    assert names(worker.core.schedule(0.0)) == "b"
    worker.feed(StepDone(result=step_result(ahead)))
    assert names(worker.core.schedule(0.0)) == "a"


def test_a_step_that_fails_ends_its_own_requests_alone() -> None:
    worker = make_worker(num_stages=2)
    for number, name in enumerate("ab"):
        worker.generate(make_request(name, prompt=3, first=1 + 50 * number, max_tokens=2))
    first, second = worker.core.schedule(0.0), worker.core.schedule(0.0)
    assert (names(first), names(second)) == ("a", "b")
    worker.feed(StepFailed(message="on purpose"))
    assert [one.request_id for one in worker.heard(Failed)] == ["a"]
    assert second is not None
    worker.feed(StepDone(result=step_result(second)))
    worker.step()
    assert [output.request_id for one in worker.heard(TokenBatch) for output in one.outputs] == ["b"]
    assert worker.core.num_requests == 0
    worker.core.check_invariants()
