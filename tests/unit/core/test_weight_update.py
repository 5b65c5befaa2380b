from __future__ import annotations

import json
from typing import Any

import pytest

from baton_core.errors import BatonError, ErrorCode, IncompatibleWorkerError, InvalidRequestError
from baton_core.sessions.control_messages import Control, ControlAction, ControlResult, EnginePart
from baton_core.sessions.router_messages import Generate, OutputSoFar, Refused, Reserve
from baton_core.sessions.weight_arguments import check_init_info, read_update_info
from baton_core.sessions.worker_info import WorkerLoad
from baton_core.weight_update import WeightUpdate, WeightVersion
from baton_core.worker.worker_events import ControlDone, FromRouter, RouterJoined, RunControl
from baton_router.core.fleet.fleet import Fleet
from tests.builders import WEIGHTS, make_identity, make_request, make_source, make_worker_config, make_worker_info
from tests.unit.core.workers import ROUTER, Worker

NEW = WeightVersion(path="/new", weights="new")


@pytest.fixture
def worker() -> Worker:
    worker = Worker(make_worker_config())
    worker.feed(RouterJoined(router_id=ROUTER))
    return worker


def ask(worker: Worker, action: ControlAction, *, timeout_s: float = 10.0, **argument: Any) -> list[Any]:
    return worker.command(
        Control(control_id=1, action=action, argument_json=json.dumps(argument), timeout_s=timeout_s)
    )


def switch(worker: Worker, **fields: Any) -> list[Any]:
    return ask(worker, ControlAction.SWITCH_WEIGHTS, path="/new", weights="new", **fields)


def answer(worker: Worker) -> ControlResult:
    result = worker.heard(ControlResult)[-1]
    assert isinstance(result, ControlResult)
    return result


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
    with pytest.raises(BatonError, match="has no weights"):
        _ = update.staged


def test_workers_that_see_different_files_at_a_path_are_named() -> None:
    update = WeightUpdate()
    update.start()
    with pytest.raises(BatonError, match="'/new', where p sees weights new and d sees other; allowed: the same"):
        update.stage("/new", {"p": "new", "d": "other"})
    with pytest.raises(BatonError, match="has no weights"):
        _ = update.staged


@pytest.mark.parametrize("info", [{"backend": "nccl"}, {"master_address": "h", "master_port": 1}])
def test_another_backend_is_refused(info: dict[str, Any]) -> None:
    check_init_info({})
    check_init_info({"backend": "files"})
    with pytest.raises(InvalidRequestError, match="init_info .*neither NCCL nor IPC"):
        check_init_info(info)


@pytest.mark.parametrize("info", [{}, {"path": ""}, {"path": 3}, {"names": []}, {"path": "/new", "packed": True}])
def test_weights_that_are_in_no_folder_are_refused(info: dict[str, Any]) -> None:
    assert read_update_info({"path": "/new"}) == "/new"
    with pytest.raises(InvalidRequestError, match='update_info .*allowed: {"path": FOLDER}'):
        read_update_info(info)


# --- a worker ---


def test_a_check_runs_beside_the_steps_and_one_at_a_time(worker: Worker) -> None:
    worker.generate(make_request(max_tokens=3))
    (run,) = ask(worker, ControlAction.CHECK_WEIGHTS, path="/new")
    assert run == RunControl(run_id=1, action=ControlAction.CHECK_WEIGHTS, argument_json='{"path": "/new"}')
    worker.step()
    ask(worker, ControlAction.CHECK_WEIGHTS, path="/new")
    assert answer(worker).code is ErrorCode.OVERLOADED
    (profile,) = ask(worker, ControlAction.START_PROFILE)
    worker.feed(ControlDone(run_id=profile.run_id))
    worker.feed(ControlDone(run_id=run.run_id, result_json='"new"'))
    assert (answer(worker).result_json, answer(worker).weights) == ('"new"', WEIGHTS)
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
    assert answer(worker).weights == worker.core.load(0.0).weights == "new"
    assert not answer(worker).is_paused


def test_a_request_that_has_begun_elsewhere_is_taken_before_a_switch_but_not_during_it(worker: Worker) -> None:
    worker.generate(make_request("open", max_tokens=8))
    switch(worker)
    resumed = (OutputSoFar(index=0, token_ids=(5,)),)
    worker.command(Generate(spec=make_request("resumed", resumed=resumed)))
    worker.command(Reserve(spec=make_request("split"), source=make_source()))
    assert refusals(worker) == []
    other = Worker(make_worker_config())
    (run,) = switch(other)
    other.command(Generate(spec=make_request("resumed", resumed=resumed)))
    assert refusals(other) == ["the worker is about to load other weights"]
    other.feed(ControlDone(run_id=run.run_id, weights="new"))


def test_a_switch_that_waits_too_long_leaves_the_weights(worker: Worker) -> None:
    worker.generate(make_request(max_tokens=8))
    switch(worker, timeout_s=5.0)
    assert worker.core.next_deadline() == 5.0
    worker.wait(5.0)
    assert answer(worker).code is ErrorCode.DEADLINE_EXCEEDED
    text = "switch_weights waited 5 s for 1 requests, 0 leases and 0 transfers to end"
    assert (answer(worker).message, answer(worker).weights) == (text, WEIGHTS)
    worker.generate(make_request("new"))
    assert refusals(worker) == []


def test_a_switch_that_fails_leaves_the_weights(worker: Worker) -> None:
    (run,) = switch(worker)
    worker.feed(ControlDone(run_id=run.run_id, code=ErrorCode.INVALID_MODEL, message="no", weights=WEIGHTS))
    assert (answer(worker).code, answer(worker).weights) == (ErrorCode.INVALID_MODEL, WEIGHTS)
    worker.generate(make_request())
    assert refusals(worker) == []


def test_a_second_switch_and_one_of_a_sleeping_worker_are_refused(worker: Worker) -> None:
    (run,) = switch(worker)
    assert switch(worker) == []
    assert answer(worker).code is ErrorCode.OVERLOADED
    worker.feed(ControlDone(run_id=run.run_id, away=frozenset(EnginePart), weights="new"))
    switch(worker)
    assert answer(worker).message.endswith("allowed: wake_up first")


def test_blocks_of_other_weights_are_not_found_and_requests_for_them_not_taken(worker: Worker) -> None:
    def run(request_id: str, **fields: Any) -> None:
        worker.generate(make_request(request_id, prompt=9, max_tokens=1, **fields))
        while worker.core.num_requests:
            worker.step()

    run("first")
    (before,) = {*worker.core.pool.cache.hashes()} and [set(worker.core.pool.cache.hashes())]
    (control,) = switch(worker)
    worker.feed(ControlDone(run_id=control.run_id, weights="new"))
    worker.generate(make_request("late"))
    assert refusals(worker) == ["weights is 'tiny'; allowed: 'new', which this worker has loaded"]
    run("second", weights="new")
    assert before.isdisjoint(worker.core.pool.cache.hashes())


# --- a router's fleet ---


def reported(weights: str) -> WorkerLoad:
    return WorkerLoad(weights=weights, num_available_blocks=16)


def test_the_weights_that_a_worker_changes_to_are_served_and_others_get_no_request() -> None:
    fleet = Fleet()
    for name in ("p", "d"):
        fleet.join(make_worker_info(name))
    assert fleet.weights == WEIGHTS
    fleet.report(0.0, "p", reported(WEIGHTS))
    fleet.update_status("d", ControlResult(control_id=1, weights="new"))
    assert fleet.weights == "new"
    assert fleet.identity == make_identity(weights="new")
    assert [fleet.has_served_weights(name) for name in ("p", "d")] == [False, True]
    assert {view.worker_id: view.weights for view in fleet.views(8, ())} == {"p": WEIGHTS, "d": "new"}


def test_a_fleet_is_ready_with_workers_of_the_weights_that_are_served_alone() -> None:
    fleet = Fleet()
    for name in ("a", "b"):
        fleet.join(make_worker_info(name))
    fleet.set_version(NEW)
    assert not fleet.is_ready
    fleet.report(0.0, "a", reported("new"))
    assert fleet.is_ready


def test_a_worker_with_other_weights_joins_only_where_it_can_be_brought_to_those_served() -> None:
    fleet = Fleet()
    fleet.join(make_worker_info("a"))
    fleet.report(0.0, "a", reported("new"))
    with pytest.raises(IncompatibleWorkerError, match="weights is 'tiny'; allowed: 'new'"):
        fleet.join(make_worker_info("b"))
    fleet.set_version(NEW)
    fleet.join(make_worker_info("b"))
    assert not fleet.has_served_weights("b")
    fleet.leave("a")
    assert fleet.weights == "new"


def test_a_version_that_another_router_has_replaced_is_brought_to_no_worker() -> None:
    fleet = Fleet()
    fleet.join(make_worker_info("a"))
    fleet.set_version(NEW)
    fleet.report(0.0, "a", reported("newer"))
    assert (fleet.weights, fleet.version) == ("newer", None)


def test_without_a_version_the_weights_of_the_workers_that_are_left_are_served() -> None:
    fleet = Fleet()
    for name in ("a", "b"):
        fleet.join(make_worker_info(name))
    fleet.report(0.0, "a", reported("new"))
    fleet.leave("a")
    assert fleet.weights == WEIGHTS
