"""Resets of a worker's prefix cache that take the blocks of running requests too."""

from __future__ import annotations

import json
from typing import Any

import pytest

from baton_core.errors import ErrorCode
from baton_core.sessions.control_messages import ControlAction, ControlResult, EnginePart
from baton_core.sessions.router_messages import FirstToken, TokenBatch
from baton_core.worker.worker_events import ControlDone, StepDone
from baton_worker.core.controls import MAX_QUEUED
from tests.builders import make_request, step_result
from tests.unit.core.workers import Pair, Worker, make_worker


def reset(worker: Worker, *, control_id: int = 1, timeout_s: float = 10.0) -> list[Any]:
    action = ControlAction.RESET_PREFIX_CACHE
    return worker.ask(action, control_id=control_id, timeout_s=timeout_s, reset_running_requests=True)


def num_in_use(worker: Worker) -> int:
    """Return the blocks that its last reset has left in use."""
    count = json.loads(worker.answer().result_json)["num_in_use"]
    assert isinstance(count, int)
    return count


def num_tokens(worker: Worker) -> int:
    """Return how many tokens it has told."""
    batches = (output for batch in worker.heard(TokenBatch) for output in batch.outputs)
    return sum(len(output.token_ids) for output in batches) + len(worker.heard(FirstToken))


def test_running_requests_lose_their_blocks_and_compute_their_tokens_again(worker: Worker) -> None:
    worker.generate(make_request(prompt=9, max_tokens=6))
    worker.step()
    worker.step()
    reset(worker)
    assert num_in_use(worker) == worker.core.pool.num_used == worker.core.pool.num_cached == 0
    (piece,) = worker.plan().slices
    assert len(piece.token_ids) == 11
    worker.feed(StepDone(result=step_result(worker.core.scheduler.in_flight.first.plan, 500)))
    worker.run()
    assert num_tokens(worker) == 6


@pytest.mark.parametrize("num_in_flight", [1, 2])
def test_a_reset_waits_for_the_steps_in_flight_and_no_other_begins(num_in_flight: int) -> None:
    worker = make_worker(plans_ahead=True)
    worker.generate(make_request(prompt=9, max_tokens=6))
    worker.step()
    plans = [worker.plan() for _ in range(num_in_flight)]
    reset(worker)
    for plan in plans:
        assert worker.core.schedule(0.0) is None
        assert worker.core.pool.num_used
        worker.feed(StepDone(result=step_result(plan, 500)))
    assert num_in_use(worker) == worker.core.pool.num_used == 0
    worker.run()
    assert num_tokens(worker) == 6


def test_a_reset_waits_until_a_prompt_is_handed_over() -> None:
    pair = Pair()
    spec = make_request(prompt=9, max_tokens=4)
    pair.begin(spec)
    for worker in (pair.p, pair.d):
        reset(worker)
        assert not worker.heard(ControlResult)
    pair.finish_pulls()
    assert num_in_use(pair.p) == 0
    pair.carry(pair.d.start(spec.request_id, 500))
    assert num_in_use(pair.d) == 0
    (piece,) = pair.d.plan().slices
    assert len(piece.token_ids) == 10
    pair.d.feed(StepDone(result=step_result(pair.d.core.scheduler.in_flight.first.plan, 500)))
    pair.d.run()
    assert num_tokens(pair.d) == 3
    pair.assert_nothing_is_held()


def test_prompts_are_computed_while_a_reset_waits_for_their_hand_over() -> None:
    pair = Pair(max_num_batched_tokens=4)
    spec = make_request(prompt=9)
    pair.reserve(spec)
    pair.carry(pair.p.prefill(spec))
    pair.carry(pair.p.step())
    reset(pair.p)
    while pair.p.core.num_requests:
        pair.carry(pair.p.step())
    pair.finish_pulls()
    assert num_in_use(pair.p) == 0


def test_a_reset_whose_time_is_over_leaves_the_blocks_in_use() -> None:
    pair = Pair()
    pair.begin(make_request(prompt=9))
    reset(pair.d, timeout_s=5.0)
    pair.d.wait(5.0)
    assert num_in_use(pair.d) > 0
    assert pair.d.answer().code is None


def test_one_more_than_may_wait_is_refused() -> None:
    pair = Pair()
    pair.begin(make_request(prompt=9))
    for control_id in range(1, MAX_QUEUED + 2):
        reset(pair.d, control_id=control_id)
    assert (pair.d.answer().control_id, pair.d.answer().code) == (MAX_QUEUED + 1, ErrorCode.OVERLOADED)


def test_a_wrong_argument_is_refused_and_nothing_is_forgotten(worker: Worker) -> None:
    worker.generate(make_request(prompt=9, max_tokens=1))
    worker.run()
    worker.ask(ControlAction.RESET_PREFIX_CACHE, reset_runing_requests=True)
    assert worker.answer().code is ErrorCode.INVALID_REQUEST
    assert worker.core.pool.num_cached == 2


def test_a_paused_worker_is_reset_too_and_goes_on_when_it_wakes_up(worker: Worker) -> None:
    worker.generate(make_request(prompt=9, max_tokens=6))
    worker.step()
    (run,) = worker.ask(ControlAction.SLEEP, level=0)
    worker.feed(ControlDone(run_id=run.run_id, away=frozenset({EnginePart.SCHEDULING})))
    reset(worker)
    assert num_in_use(worker) == worker.core.pool.num_used == 0
    (run,) = worker.ask(ControlAction.WAKE_UP)
    worker.feed(ControlDone(run_id=run.run_id))
    worker.run()
    assert num_tokens(worker) == 6
