from __future__ import annotations

from typing import Any

import pytest

from baton_core.errors import BatonError, ErrorCode, IncompatibleWorkerError, InvalidRequestError
from baton_core.kv_events.cache_delta import CacheDelta
from baton_core.requests.finish import FinishReason
from baton_core.sessions.control_messages import ControlAction, ControlResult, EnginePart
from baton_core.sessions.router_messages import (
    Cancel,
    Generate,
    OutputSoFar,
    PromptLogprobs,
    Refused,
    Reserve,
)
from baton_core.sessions.weight_arguments import check_init_info, read_update_info
from baton_core.sessions.worker_info import WorkerLoad
from baton_core.weight_update import WeightUpdate, WeightVersion
from baton_core.worker.worker_events import ControlDone, RunControl
from baton_router.core.fleet.readiness import why_not_ready
from baton_router.core.placement.placement_config import SplitMode
from baton_router.core.router_events import FailRequest, HoldDispatch, WorkerLeft
from tests.builders import (
    WEIGHTS,
    make_identity,
    make_logprobs,
    make_request,
    make_source,
    make_worker_info,
)
from tests.unit.core.routers import Client, batch, first_token, make_fleet, refused, tokens
from tests.unit.core.workers import Worker, make_worker

NEW = WeightVersion(path="/new", weights="new")


def switch(worker: Worker, **fields: Any) -> list[Any]:
    return worker.ask(ControlAction.SWITCH_WEIGHTS, path="/new", weights="new", **fields)


def refusals(worker: Worker) -> list[str]:
    return [one.message for one in worker.heard(Refused)]


# --- the steps ---


def test_an_update_is_begun_then_given_weights_then_finished() -> None:
    update = WeightUpdate()
    for step in (update.require_open, lambda: update.staged, lambda: update.stage("/new", {"p": "new"})):
        with pytest.raises(BatonError, match="allowed: start_weight_update first"):
            step()
    update.start()
    with pytest.raises(BatonError, match="allowed: update_weights before finish_weight_update"):
        _ = update.staged
    assert update.stage("/new", {"p": "new", "d": "new"}) == update.staged == NEW
    update.finish()
    with pytest.raises(BatonError, match="allowed: start_weight_update first"):
        _ = update.staged


def test_an_update_that_is_begun_again_forgets_its_weights() -> None:
    update = WeightUpdate()
    update.start()
    update.stage("/new", {"p": "new"})
    update.start()
    with pytest.raises(BatonError, match="is without weights"):
        _ = update.staged


def test_workers_that_see_different_files_at_a_path_are_named() -> None:
    update = WeightUpdate()
    update.start()
    with pytest.raises(
        BatonError, match="'/new', where p sees weights new and d sees other; allowed: the same"
    ):
        update.stage("/new", {"p": "new", "d": "other"})
    with pytest.raises(BatonError, match="is without weights"):
        _ = update.staged


@pytest.mark.parametrize("info", [{"backend": "nccl"}, {"master_address": "h", "master_port": 1}])
def test_another_backend_is_refused(info: dict[str, Any]) -> None:
    check_init_info({})
    check_init_info({"backend": "files"})
    with pytest.raises(InvalidRequestError, match="neither NCCL nor IPC"):
        check_init_info(info)


@pytest.mark.parametrize(
    "info", [{}, {"path": ""}, {"path": 3}, {"names": []}, {"path": "/new", "packed": True}]
)
def test_weights_that_are_in_no_folder_are_refused(info: dict[str, Any]) -> None:
    assert read_update_info({"path": "/new"}) == "/new"
    with pytest.raises(InvalidRequestError, match="neither NCCL nor IPC"):
        read_update_info(info)


# --- a worker ---


def test_a_check_runs_beside_the_steps_and_one_at_a_time(worker: Worker) -> None:
    worker.generate(make_request(max_tokens=3))
    (run,) = worker.ask(ControlAction.CHECK_WEIGHTS, path="/new")
    assert isinstance(run, RunControl)
    assert (run.action, run.argument_json) == (ControlAction.CHECK_WEIGHTS, '{"path": "/new"}')
    worker.step()
    worker.ask(ControlAction.CHECK_WEIGHTS, path="/new")
    assert worker.answer().code is ErrorCode.OVERLOADED
    (profile,) = worker.ask(ControlAction.START_PROFILE)
    worker.feed(ControlDone(run_id=profile.run_id))
    worker.feed(ControlDone(run_id=run.run_id, result_json='"new"'))
    assert (worker.answer().result_json, worker.answer().weights) == ('"new"', WEIGHTS)
    worker.step()


def test_a_switch_waits_until_nothing_is_open_and_lets_nothing_begin_meanwhile(worker: Worker) -> None:
    worker.generate(make_request("open", max_tokens=2))
    assert switch(worker) == []
    assert worker.core.load(0.0).is_paused
    worker.generate(make_request("new"))
    assert refusals(worker) == ["the worker is about to load other weights"]
    worker.step()
    (run,) = [effect for effect in worker.step() if isinstance(effect, RunControl)]
    assert run.action is ControlAction.SWITCH_WEIGHTS
    assert worker.core.pool.num_cached == 0
    worker.feed(ControlDone(run_id=run.run_id, weights="new"))
    assert worker.answer().weights == worker.core.load(0.0).weights == "new"
    assert not worker.answer().is_paused


def test_a_request_that_has_begun_elsewhere_is_taken_before_a_switch_but_not_during_it(
    worker: Worker,
) -> None:
    worker.generate(make_request("open", max_tokens=8))
    switch(worker)
    resumed = (OutputSoFar(index=0, token_ids=(5,)),)
    worker.command(Generate(spec=make_request("resumed", resumed=resumed)))
    worker.command(Reserve(spec=make_request("split"), source=make_source()))
    assert refusals(worker) == []
    other = make_worker()
    (run,) = switch(other)
    other.command(Generate(spec=make_request("resumed", resumed=resumed)))
    assert refusals(other) == ["the worker is about to load other weights"]
    other.feed(ControlDone(run_id=run.run_id, weights="new"))


def test_a_switch_that_waits_too_long_leaves_the_weights(worker: Worker) -> None:
    worker.generate(make_request(max_tokens=8))
    switch(worker, timeout_s=5.0)
    assert worker.core.next_deadline() == 5.0
    worker.wait(5.0)
    assert worker.answer().code is ErrorCode.DEADLINE_EXCEEDED
    text = "switch_weights waited 5 s for 1 requests, 0 leases and 0 transfers to end"
    assert (worker.answer().message, worker.answer().weights) == (text, WEIGHTS)
    worker.generate(make_request("new"))
    assert refusals(worker) == []


def test_a_switch_that_fails_leaves_the_weights(worker: Worker) -> None:
    (run,) = switch(worker)
    worker.feed(ControlDone(run_id=run.run_id, code=ErrorCode.INVALID_MODEL, message="no", weights=WEIGHTS))
    assert (worker.answer().code, worker.answer().weights) == (ErrorCode.INVALID_MODEL, WEIGHTS)
    worker.generate(make_request())
    assert refusals(worker) == []


def test_a_second_switch_and_one_of_a_sleeping_worker_are_refused(worker: Worker) -> None:
    (run,) = switch(worker)
    assert switch(worker) == []
    assert worker.answer().code is ErrorCode.OVERLOADED
    worker.feed(ControlDone(run_id=run.run_id, away=frozenset(EnginePart), weights="new"))
    switch(worker)
    assert worker.answer().message.endswith("allowed: wake_up first")


def test_a_worker_that_sleeps_without_its_kv_cache_alone_switches_and_sleeps_on(worker: Worker) -> None:
    away = frozenset({EnginePart.KV_CACHE})
    (run,) = worker.ask(ControlAction.WAKE_UP, tags=["weights"])
    worker.feed(ControlDone(run_id=run.run_id, away=away, weights=WEIGHTS))
    (run,) = switch(worker)
    worker.feed(ControlDone(run_id=run.run_id, away=away, weights="new"))
    assert (worker.answer().code, worker.answer().weights, worker.answer().is_asleep) == (None, "new", True)
    worker.generate(make_request())
    assert refusals(worker) == ["the worker sleeps"]


def test_blocks_of_other_weights_are_not_found_and_requests_for_them_not_taken(worker: Worker) -> None:
    def run(request_id: str, **fields: Any) -> None:
        worker.generate(make_request(request_id, prompt=9, max_tokens=1, **fields))
        worker.run()

    def stored() -> set[bytes]:
        return {one for delta in worker.heard(CacheDelta) for one in delta.stored}

    run("first")
    before = stored()
    (control,) = switch(worker)
    worker.feed(ControlDone(run_id=control.run_id, weights="new"))
    worker.generate(make_request("late"))
    assert refusals(worker) == ["weights is 'tiny'; allowed: 'new', which this worker has loaded"]
    assert worker.heard(CacheDelta)[-1] == CacheDelta(number=2, is_snapshot=True)
    worker.take_told()
    run("second", weights="new")
    assert len(stored()) == len(before)
    assert before.isdisjoint(stored())


# --- a router ---


def test_requests_that_have_not_begun_wait_while_dispatch_is_held_and_those_that_have_go_on() -> None:
    client = Client("p", "d")
    client.submit("begun")
    client.feed(HoldDispatch(why="the weights are being switched"))
    assert client.core.num_begun == 1
    assert client.submit("new", first=50) == []
    assert [worker_id for worker_id, _ in client.says("p", first_token("begun"))] == ["d"]
    assert client.heartbeat("d", now=1.0) == []
    client.says("d", batch(tokens("begun", 0, 6, reason=FinishReason.STOP)))
    assert client.core.num_begun == 0
    assert client.core.next_deadline() == 30.0
    sent = client.feed(HoldDispatch(why=""), now=2.0)
    assert [worker_id for worker_id, _ in sent] == ["p", "d"]


def test_a_request_that_waits_too_long_while_dispatch_is_held_hears_why() -> None:
    client = Client("p", "d")
    client.feed(HoldDispatch(why="an operator has paused generation"))
    client.submit()
    client.wait(30.0)
    assert isinstance(client.terminal, FailRequest)
    assert client.terminal.message == "waited 30.0 s for a worker: an operator has paused generation"


def test_a_request_names_the_weights_that_are_served_and_takes_others_until_it_has_tokens() -> None:
    client = Client("p", "d")
    sent = client.submit(weights="")
    client.join("p2")
    client.join("d2")
    assert {message.spec.weights for _, message in sent} == {WEIGHTS}
    for name in ("p2", "d2"):
        client.heartbeat(name, weights="new")
    sent = client.says("p", refused(code=ErrorCode.UNAVAILABLE))
    begun = [
        (worker_id, message.spec.weights) for worker_id, message in sent if not isinstance(message, Cancel)
    ]
    assert begun == [("p2", "new"), ("d2", "new")]


@pytest.mark.parametrize("has_prompt_logprobs", [False, True])
def test_a_request_that_the_client_has_something_of_stays_with_its_weights(has_prompt_logprobs: bool) -> None:
    client = Client("m", "m2", split=SplitMode.NEVER)
    client.submit(weights="", prompt=4, prompt_logprobs=0 if has_prompt_logprobs else None)
    (placed,) = [worker_id for worker_id, _ in client.sent]
    if has_prompt_logprobs:
        entries = tuple(make_logprobs(1, position) for position in (1, 2, 3))
        client.says(placed, PromptLogprobs(request_id="r", start=1, entries=entries))
    else:
        client.says(placed, first_token())
    (other,) = {"m", "m2"} - {placed}
    client.heartbeat(other, weights="new")
    sent = client.feed(WorkerLeft(worker_id=placed, reason="it is silent"), now=1.0)
    assert [message for _, message in sent if not isinstance(message, Cancel)] == []
    client.wait(30.0)
    assert client.code is ErrorCode.WORKER_LOST
    assert isinstance(client.terminal, FailRequest)
    assert f"weights {WEIGHTS}" in client.terminal.message


def test_a_request_that_its_client_resumes_takes_its_own_weights_alone() -> None:
    client = Client("m", split=SplitMode.NEVER)
    assert client.submit(weights="other") == []
    assert not client.ends
    (sent,) = client.heartbeat("m", weights="other", now=1.0)
    assert sent[1].spec.weights == "other"


def reported(weights: str) -> WorkerLoad:
    return WorkerLoad(weights=weights, num_available_blocks=16)


def test_the_weights_that_a_worker_changes_to_are_served_and_others_get_no_request() -> None:
    fleet = make_fleet("p", "d")
    assert fleet.weights == WEIGHTS
    fleet.report(0.0, "p", reported(WEIGHTS))
    fleet.update_status("d", ControlResult(control_id=1, weights="new"))
    assert fleet.weights == "new"
    assert fleet.identity == make_identity(weights="new")
    assert [fleet.has_served_weights(name) for name in ("p", "d")] == [False, True]
    assert {view.worker_id: view.weights for view in fleet.views(8, ())} == {"p": WEIGHTS, "d": "new"}


def test_a_fleet_is_ready_with_workers_of_the_weights_that_are_served_alone() -> None:
    fleet = make_fleet("a", "b")
    fleet.set_version(NEW)
    assert not fleet.is_ready
    why = why_not_ready(fleet.workers(), weights=fleet.weights)
    assert why == "no worker prefills: a has yet to load weights new, b has yet to load weights new"
    fleet.report(0.0, "a", reported("new"))
    assert fleet.is_ready
    assert why_not_ready(fleet.workers(), weights=fleet.weights) == ""


def test_a_worker_with_other_weights_joins_only_where_it_can_be_brought_to_those_served() -> None:
    fleet = make_fleet("a")
    fleet.report(0.0, "a", reported("new"))
    with pytest.raises(IncompatibleWorkerError, match="weights is 'tiny'; allowed: 'new'"):
        fleet.join(make_worker_info("b"))
    fleet.set_version(NEW)
    fleet.join(make_worker_info("b"))
    assert not fleet.has_served_weights("b")
    fleet.leave("a")
    assert fleet.weights == "new"


def test_a_version_that_another_router_has_replaced_is_brought_to_no_worker() -> None:
    fleet = make_fleet("a")
    fleet.set_version(NEW)
    fleet.report(0.0, "a", reported("newer"))
    assert (fleet.weights, fleet.version) == ("newer", None)


def test_without_a_version_the_weights_of_the_workers_that_are_left_are_served() -> None:
    fleet = make_fleet("a", "b")
    fleet.report(0.0, "a", reported("new"))
    fleet.leave("a")
    assert fleet.weights == WEIGHTS
