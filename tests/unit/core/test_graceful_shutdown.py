"""A worker that is told to end gives back what it cannot end, and keeps blocks for those that pull them."""

from __future__ import annotations

import json

import pytest

from baton_core.errors import ErrorCode
from baton_core.sessions.control_messages import ControlAction, ControlResult
from baton_core.sessions.router_messages import Failed, FirstToken, Refused, TokenBatch
from baton_core.worker.worker_events import Drain, Leave, RouterJoined, StepDone
from baton_worker.core.scheduler_config import SchedulerConfig
from baton_worker.core.worker_status import LEAVING
from tests.builders import make_request, make_worker_config, step_result
from tests.unit.core.workers import ROUTER, Pair, Worker


def make_worker(**changes: object) -> Worker:
    worker = Worker(make_worker_config(**changes))
    worker.feed(RouterJoined(router_id=ROUTER))
    return worker


def is_over(worker: Worker, now: float) -> bool:
    return worker.core.shutdown.is_over(now, worker.core.open_work)


def requests_to_return(worker: Worker) -> list[str]:
    """Requests that were given back so far."""
    failed = worker.heard(Failed)
    assert {one.code for one in failed} <= {ErrorCode.UNAVAILABLE}
    return [one.request_id for one in failed]


def test_what_has_not_begun_is_given_back_at_once_and_what_runs_may_end() -> None:
    worker = make_worker(scheduler=SchedulerConfig(max_num_seqs=1))
    worker.generate(make_request("runs", max_tokens=3))
    worker.step()
    worker.generate(make_request("waits"))
    worker.feed(Leave(within_s=10.0))
    assert requests_to_return(worker) == ["waits"]
    assert worker.core.load(0.0).is_draining
    while worker.core.num_requests:
        assert not is_over(worker, 1.0)
        worker.step(now=1.0)
    assert worker.heard(TokenBatch)[-1].outputs[0].finish_reason == "length"
    assert is_over(worker, 1.0)
    assert worker.core.next_deadline() == 5.0


def test_what_still_runs_after_half_of_the_time_is_given_back_and_no_block_stays() -> None:
    worker = make_worker(scheduler=SchedulerConfig(max_num_batched_tokens=16))
    worker.generate(make_request("decodes", prompt=5, max_tokens=90))
    worker.step()
    worker.generate(make_request("several", prompt=6, n=2, max_tokens=90))
    worker.step()
    worker.generate(make_request("in mid-prompt", prompt=40))
    worker.step()
    worker.reserve(make_request("reserved", prompt=9))
    worker.prefill(make_request("for another one", prompt=40))
    assert len(worker.heard(FirstToken)) == 2
    worker.feed(Leave(within_s=10.0), now=0.0)
    worker.wait(4.9)
    assert requests_to_return(worker) == ["for another one"]
    plan = worker.plan(4.9)
    worker.wait(5.0)
    assert sorted(requests_to_return(worker)) == sorted(
        ["decodes", "several", "in mid-prompt", "reserved", "for another one"]
    )
    assert {one.message for one in worker.heard(Failed)} == {LEAVING}
    assert is_over(worker, 5.0)
    worker.feed(StepDone(result=step_result(plan, 500)), now=5.0)
    assert worker.core.schedule(5.0) is None
    assert worker.core.pool.num_available == worker.core.pool.num_blocks


def test_without_time_everything_is_given_back_at_once() -> None:
    worker = make_worker()
    worker.generate(make_request("r", max_tokens=90))
    worker.step()
    worker.feed(Leave(within_s=0.0))
    assert requests_to_return(worker) == ["r"]
    assert is_over(worker, 0.0)


def test_nothing_new_is_taken_and_no_operator_changes_that() -> None:
    worker = make_worker()
    worker.feed(Leave(within_s=10.0))
    worker.generate(make_request("late"))
    (refused,) = worker.heard(Refused)
    assert (refused.code, refused.message) == (ErrorCode.UNAVAILABLE, "the worker drains")
    worker.ask(ControlAction.UNDRAIN)
    (result,) = worker.heard(ControlResult)
    assert (result.code, result.message, result.is_draining) == (ErrorCode.UNAVAILABLE, LEAVING, True)


def test_blocks_that_are_pulled_are_kept_until_they_are_or_the_time_is_over() -> None:
    pair = Pair()
    pair.begin(make_request(prompt=9))
    pair.p.feed(Leave(within_s=10.0))
    assert not is_over(pair.p, 9.9)
    assert is_over(pair.p, 10.0)
    pair.p.wait(5.0)
    assert requests_to_return(pair.p) == []
    pair.finish_pulls()
    assert is_over(pair.p, 5.0)


@pytest.mark.parametrize("is_told_to_end", [True, False])
def test_a_prompt_that_nobody_comes_for_is_given_back_soon_by_a_worker_that_is_emptied(
    is_told_to_end: bool,
) -> None:
    pair = Pair()
    pair.prefill(make_request("before", prompt=9))
    pair.p.wait(1.0)
    assert pair.p.core.open_work.num_offers == 1
    pair.p.feed(Leave(within_s=8.0), now=2.0) if is_told_to_end else pair.p.ask(ControlAction.DRAIN, now=2.0)
    pair.p.wait(3.0)
    assert requests_to_return(pair.p) == ["before"]
    assert pair.p.heard(Failed)[0].message.endswith("and the worker drains")
    assert not pair.p.core.open_work


def test_a_worker_that_takes_requests_again_waits_for_pullers_as_long_as_ever() -> None:
    pair = Pair()
    for action in (ControlAction.DRAIN, ControlAction.UNDRAIN):
        pair.p.ask(action)
        assert json.loads(pair.p.answer().result_json)["num_offers"] == 0
    pair.prefill(make_request(prompt=9))
    pair.p.wait(14.9)
    assert pair.p.core.open_work.num_offers == 1
    pair.p.wait(15.0)
    assert (requests_to_return(pair.p), pair.p.core.leases.num_unclaimed) == ([], 1)


def test_a_worker_that_is_drained_on_its_machine_ends_what_it_has_and_stays() -> None:
    worker = make_worker(scheduler=SchedulerConfig(max_num_seqs=1))
    worker.generate(make_request("runs", max_tokens=3))
    worker.step()
    worker.generate(make_request("waits", max_tokens=2))
    worker.feed(Drain())
    assert worker.core.load(0.0).is_draining
    assert requests_to_return(worker) == []
    worker.generate(make_request("late"))
    assert [one.request_id for one in worker.heard(Refused)] == ["late"]
    worker.run()
    assert not is_over(worker, 100.0)
