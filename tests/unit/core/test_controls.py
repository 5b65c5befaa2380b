from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from baton_core.errors import ErrorCode
from baton_core.kv_events.cache_delta import CacheDelta
from baton_core.requests.adapter import Adapter
from baton_core.sessions.control_messages import Control, ControlAction, ControlResult, EnginePart
from baton_core.sessions.router_messages import Refused
from baton_core.worker.worker_events import (
    AdapterLoaded,
    ControlDone,
    DropAdapter,
    LoadAdapter,
    RouterLost,
    RunControl,
    StepDone,
)
from baton_worker.core.controls import MAX_QUEUED
from tests.builders import make_request, step_result
from tests.unit.core.workers import ROUTER, Pair, Worker, make_worker

MEMORY = frozenset({EnginePart.WEIGHTS, EnginePart.KV_CACHE})


def sleep(worker: Worker, level: int = 1) -> ControlResult:
    """Have the worker sleep."""
    (run,) = worker.ask(ControlAction.SLEEP, level=level)
    away = MEMORY if level else frozenset({EnginePart.SCHEDULING})
    worker.feed(ControlDone(run_id=run.run_id, away=away))
    return worker.answer()


def finish(worker: Worker, request_id: str, **fields: Any) -> None:
    """Run a request of one output token to its end."""
    worker.generate(make_request(request_id, max_tokens=1, **fields))
    worker.run()


def test_an_idle_worker_runs_what_it_is_asked_at_once_and_plans_no_step_meanwhile(worker: Worker) -> None:
    effects = worker.ask(ControlAction.COLLECTIVE_RPC, timeout_s=7.0, method="m:f")
    argument_json = '{"method": "m:f"}'
    assert effects == [
        RunControl(run_id=1, action=ControlAction.COLLECTIVE_RPC, argument_json=argument_json, timeout_s=7.0)
    ]
    worker.generate(make_request())
    assert worker.core.schedule(0.0) is None
    worker.feed(ControlDone(run_id=1, result_json="[1]"))
    assert worker.answer() == ControlResult(control_id=1, result_json="[1]", weights="tiny")
    assert worker.core.schedule(0.0) is not None


def test_what_is_asked_during_a_step_begins_when_the_step_ends(worker: Worker) -> None:
    worker.generate(make_request())
    plan = worker.plan()
    assert worker.ask(ControlAction.START_PROFILE) == []
    (run,) = worker.feed(StepDone(result=step_result(plan, 500)))
    assert run.action is ControlAction.START_PROFILE
    assert worker.core.schedule(0.0) is None
    worker.feed(ControlDone(run_id=run.run_id))
    worker.step()


def test_one_runs_at_a_time_and_the_others_wait_in_order(worker: Worker) -> None:
    worker.ask(ControlAction.START_PROFILE, control_id=1)
    assert worker.ask(ControlAction.APPLY_MODEL, control_id=2) == []
    assert worker.ask(ControlAction.STOP_PROFILE, control_id=3) == []
    (second,) = worker.feed(ControlDone(run_id=1))
    (third,) = worker.feed(ControlDone(run_id=2, code=ErrorCode.INTERNAL, message="it raised"))
    worker.feed(ControlDone(run_id=3))
    assert [second.action, third.action] == [ControlAction.APPLY_MODEL, ControlAction.STOP_PROFILE]
    assert [(one.control_id, one.code) for one in worker.heard(ControlResult)] == [
        (1, None),
        (2, ErrorCode.INTERNAL),
        (3, None),
    ]


def test_one_more_than_may_wait_is_refused(worker: Worker) -> None:
    for control_id in range(1, MAX_QUEUED + 2):
        worker.ask(ControlAction.APPLY_MODEL, control_id=control_id)
    assert worker.heard(ControlResult) == []
    worker.ask(ControlAction.APPLY_MODEL, control_id=99)
    assert (worker.answer().control_id, worker.answer().code) == (99, ErrorCode.OVERLOADED)


def test_what_waits_too_long_is_refused_and_says_what_it_waited_for(worker: Worker) -> None:
    worker.ask(ControlAction.APPLY_MODEL, control_id=1)
    worker.ask(ControlAction.SLEEP, control_id=2, timeout_s=5.0)
    assert worker.core.next_deadline() == 5.0
    worker.wait(5.0)
    assert worker.answer().code is ErrorCode.DEADLINE_EXCEEDED
    assert worker.answer().message == "sleep waited 5 s for apply_model to end"
    assert worker.feed(ControlDone(run_id=1)) == []
    assert worker.core.next_deadline() is None


def test_the_answer_of_an_earlier_run_is_dropped(worker: Worker) -> None:
    worker.ask(ControlAction.APPLY_MODEL)
    worker.feed(ControlDone(run_id=7))
    assert worker.heard(ControlResult) == []


def test_what_a_lost_router_has_asked_still_ends(worker: Worker) -> None:
    (run,) = worker.ask(ControlAction.SLEEP)
    worker.feed(RouterLost(router_id=ROUTER))
    worker.feed(ControlDone(run_id=run.run_id, away=MEMORY))
    assert worker.core.load(0.0).is_asleep


def test_a_reset_forgets_what_nobody_uses_and_tells_the_routers(worker: Worker) -> None:
    finish(worker, "old", prompt=9)
    worker.generate(make_request("new", prompt=9, first=100))
    worker.step()
    stored = [one for delta in worker.heard(CacheDelta) for one in delta.stored]
    worker.take_told()
    worker.ask(ControlAction.RESET_PREFIX_CACHE)
    in_use = worker.core.pool.num_used
    assert json.loads(worker.answer().result_json) == {"num_forgotten": 2, "num_in_use": in_use}
    (delta,) = worker.heard(CacheDelta)
    assert set(delta.removed) < set(stored)
    assert len(delta.removed) == 2
    worker.run()


def test_a_reset_does_not_wait_for_the_step_in_flight(worker: Worker) -> None:
    worker.generate(make_request())
    assert worker.core.schedule(0.0) is not None
    worker.ask(ControlAction.RESET_PREFIX_CACHE)
    assert worker.answer().code is None


@pytest.mark.parametrize("level", [1, 2])
def test_a_worker_does_not_sleep_while_a_request_is_open(worker: Worker, level: int) -> None:
    worker.generate(make_request())
    assert worker.ask(ControlAction.SLEEP, level=level) == []
    assert worker.answer().code is ErrorCode.OVERLOADED
    assert "allowed with 1 requests, 0 leases and 0 transfers open: 0" in worker.answer().message
    worker.step()


def test_a_worker_does_not_sleep_while_it_keeps_blocks_for_others() -> None:
    pair = Pair()
    pair.begin(make_request(prompt=9))
    for worker, open_work in ((pair.p, "0 requests, 1 leases"), (pair.d, "1 requests, 0 leases")):
        assert worker.ask(ControlAction.SLEEP) == []
        assert open_work in worker.answer().message
    pair.finish_pulls()
    pair.carry(pair.d.cancel("r"))
    for worker in (pair.p, pair.d):
        assert [type(effect) for effect in worker.ask(ControlAction.SLEEP)] == [RunControl]


def test_a_worker_that_sleeps_has_an_empty_cache_and_refuses_requests(worker: Worker) -> None:
    finish(worker, "old", prompt=9)
    (run,) = worker.ask(ControlAction.SLEEP)
    assert worker.core.pool.num_free == worker.core.pool.num_blocks
    worker.generate(make_request("early"))
    worker.feed(ControlDone(run_id=run.run_id, away=MEMORY))
    assert worker.answer().is_asleep
    worker.reserve(make_request("late"))
    assert [(one.request_id, one.code, one.message) for one in worker.heard(Refused)] == [
        ("early", ErrorCode.UNAVAILABLE, "the worker sleeps"),
        ("late", ErrorCode.UNAVAILABLE, "the worker sleeps"),
    ]


def test_a_worker_that_woke_up_takes_requests(worker: Worker) -> None:
    sleep(worker)
    (run,) = worker.ask(ControlAction.WAKE_UP, tags=["weights"])
    worker.feed(ControlDone(run_id=run.run_id, away=frozenset({EnginePart.KV_CACHE})))
    assert worker.core.load(0.0).is_asleep
    (run,) = worker.ask(ControlAction.WAKE_UP)
    worker.feed(ControlDone(run_id=run.run_id))
    assert not worker.core.load(0.0).is_asleep
    finish(worker, "r")


@pytest.mark.parametrize("level", [1, 2])
def test_the_level_of_a_sleep_lasts_until_the_weights_are_back(worker: Worker, level: int) -> None:
    controls = worker.core.controls
    assert controls.sleep_level == 0
    sleep(worker, level)
    assert controls.sleep_level == level
    (run,) = worker.ask(ControlAction.WAKE_UP, tags=["weights"])
    worker.feed(ControlDone(run_id=run.run_id, away=frozenset({EnginePart.KV_CACHE})))
    assert controls.sleep_level == 1
    (run,) = worker.ask(ControlAction.WAKE_UP)
    worker.feed(ControlDone(run_id=run.run_id))
    assert controls.sleep_level == 0
    sleep(worker)
    assert controls.sleep_level == 1


def test_a_worker_whose_sleep_failed_is_awake(worker: Worker) -> None:
    (run,) = worker.ask(ControlAction.SLEEP)
    worker.feed(ControlDone(run_id=run.run_id, code=ErrorCode.INTERNAL, message="no"))
    assert not worker.answer().is_asleep
    finish(worker, "r")


def test_level_0_pauses_a_worker_that_still_takes_requests(worker: Worker) -> None:
    worker.generate(make_request("open", max_tokens=2))
    sleep(worker, level=0)
    assert not worker.answer().is_asleep
    worker.generate(make_request("new", max_tokens=1))
    assert worker.core.schedule(0.0) is None
    worker.ask(ControlAction.IS_SLEEPING)
    assert worker.answer().result_json == "true"
    (run,) = worker.ask(ControlAction.WAKE_UP)
    worker.feed(ControlDone(run_id=run.run_id))
    worker.run()
    worker.ask(ControlAction.IS_SLEEPING)
    assert worker.answer().result_json == "false"


@pytest.mark.parametrize("argument_json", ["[]", '{"levle": 1}', '{"level": "1"}', '{"level": 3}', "{"])
def test_a_wrong_sleep_is_refused_before_anything_is_forgotten(worker: Worker, argument_json: str) -> None:
    finish(worker, "old", prompt=9)
    control = Control(control_id=1, action=ControlAction.SLEEP, argument_json=argument_json, timeout_s=1.0)
    assert worker.command(control) == []
    assert worker.answer().code is ErrorCode.INVALID_REQUEST
    assert worker.core.pool.num_cached == 2


def test_weights_are_switched_once_the_last_lease_has_expired() -> None:
    pair = Pair()
    spec = make_request(prompt=10)
    pair.begin(spec)
    pair.is_cut = True
    assert not pair.p.ask(ControlAction.SWITCH_WEIGHTS, timeout_s=600.0, now=0.5, path="/new", weights="new")
    pair.p.cancel(spec.request_id, now=1.0)
    assert pair.p.core.open_work
    begun = [effect for effect in pair.p.wait(20.0) if isinstance(effect, RunControl)]
    assert [one.action for one in begun] == [ControlAction.SWITCH_WEIGHTS]


def test_pinned_adapters_hold_their_places_and_requests_for_others_are_refused() -> None:
    worker = make_worker(max_cpu_loras=1)
    first, other = (Adapter(name=name, digest=name * 64, path="/a", number=ord(name)) for name in "ab")
    assert worker.ask(ControlAction.PIN_ADAPTERS, numbers=[first.number]) == []
    assert (worker.answer().code, worker.answer().result_json) == (None, "true")
    for wrong, said in (
        ([1, 2], "pinned adapters is 2; allowed: 1, as max_cpu_loras says"),
        ("a", "numbers"),
    ):
        worker.ask(ControlAction.PIN_ADAPTERS, numbers=wrong)
        assert worker.answer().code is ErrorCode.INVALID_REQUEST
        assert said in worker.answer().message
    for take in (worker.generate, worker.prefill):
        take(replace(make_request(take.__name__), adapter=other))
        refused = worker.heard(Refused)[-1]
        assert (refused.request_id, refused.code) == (take.__name__, ErrorCode.INVALID_REQUEST)
        assert refused.message.startswith("lora_request is 'b'; allowed: the adapters that are pinned")
    loads = worker.generate(replace(make_request("pinned"), adapter=first))
    assert loads == [LoadAdapter(adapter=first)]
    worker.generate(make_request("without an adapter"))
    assert len(worker.heard(Refused)) == 2
    worker.ask(ControlAction.PIN_ADAPTERS, numbers=[])
    worker.generate(replace(make_request("unpinned"), adapter=other))
    assert len(worker.heard(Refused)) == 2


@pytest.mark.parametrize(("level", "is_dropped"), [(1, False), (2, True)])
def test_adapters_go_with_the_weights_of_a_sleeping_engine(level: int, is_dropped: bool) -> None:
    worker = make_worker(max_cpu_loras=2)
    adapter = Adapter(name="a", digest="a" * 64, path="/a")
    worker.generate(replace(make_request(max_tokens=1), adapter=adapter))
    worker.feed(AdapterLoaded(digest=adapter.digest))
    worker.step()
    effects = worker.ask(ControlAction.SLEEP, level=level)
    dropped = [effect.digest for effect in effects if isinstance(effect, DropAdapter)]
    assert dropped == [adapter.digest] * is_dropped
    assert isinstance(effects[-1], RunControl)
    loaded = worker.core.load(0.0).adapters
    assert loaded == (() if is_dropped else (adapter.digest,))
