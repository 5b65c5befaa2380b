"""A worker's role and whether it drains: changed at once, whatever it has."""

from __future__ import annotations

import json
from typing import Any

import pytest

from baton_core.errors import ErrorCode
from baton_core.sessions.control_messages import ControlAction, ControlResult
from baton_core.sessions.router_messages import Refused
from baton_core.sessions.worker_info import Role
from baton_core.worker.worker_events import ControlDone, RunControl
from tests.builders import make_request
from tests.unit.core.workers import Pair, Worker

EMPTY = {"num_requests": 0, "num_offers": 0, "num_transfers": 0}


def ask(worker: Worker, action: ControlAction, **argument: Any) -> ControlResult:
    """Have it answered at once, and nothing else done."""
    before = len(worker.heard(ControlResult))
    assert worker.ask(action, timeout_s=1.0, **argument) == []
    assert len(worker.heard(ControlResult)) == before + 1
    return worker.answer()


def test_a_role_is_set_while_a_step_computes_and_told_from_then_on(worker: Worker) -> None:
    assert worker.core.load(0.0).role is None
    worker.generate(make_request(max_tokens=2))
    assert worker.core.schedule(0.0) is not None
    result = ask(worker, ControlAction.SET_ROLE, role="prefill")
    assert (result.role, result.is_role_fixed, result.code) == (Role.PREFILL, True, None)
    assert json.loads(result.result_json) == {**EMPTY, "num_requests": 1}
    load = worker.core.load(0.0)
    assert (load.role, load.is_role_fixed, load.is_taking) == (Role.PREFILL, True, True)


def test_a_worker_does_what_it_is_given_whatever_its_role(worker: Worker) -> None:
    ask(worker, ControlAction.SET_ROLE, role="prefill")
    worker.generate(make_request(max_tokens=2))
    worker.run()
    assert worker.heard(Refused) == []


def test_a_router_changes_no_role_that_an_operator_has_given(worker: Worker) -> None:
    ask(worker, ControlAction.SET_ROLE, role="decode", is_fixed=False)
    assert ask(worker, ControlAction.SET_ROLE, role="mixed", is_fixed=False).role is Role.MIXED
    ask(worker, ControlAction.SET_ROLE, role="prefill")
    refused = ask(worker, ControlAction.SET_ROLE, role="decode", is_fixed=False)
    assert (refused.code, refused.role) == (ErrorCode.UNAVAILABLE, Role.PREFILL)
    assert refused.message == "an operator has made this a prefill worker"
    assert ask(worker, ControlAction.SET_ROLE, role="decode").role is Role.DECODE


def test_a_worker_that_drains_takes_nothing_new_and_ends_what_it_has(worker: Worker) -> None:
    worker.generate(make_request("old", max_tokens=3))
    result = ask(worker, ControlAction.DRAIN)
    assert (result.is_draining, worker.core.load(0.0).is_taking) == (True, False)
    worker.generate(make_request("generate"))
    worker.prefill(make_request("prefill"))
    worker.reserve(make_request("reserve"))
    assert [(one.request_id, one.code, one.message) for one in worker.heard(Refused)] == [
        (name, ErrorCode.UNAVAILABLE, "the worker drains") for name in ("generate", "prefill", "reserve")
    ]
    assert json.loads(ask(worker, ControlAction.DRAIN).result_json)["num_requests"] == 1
    worker.run()
    assert json.loads(ask(worker, ControlAction.DRAIN).result_json) == EMPTY
    assert not ask(worker, ControlAction.UNDRAIN).is_draining
    worker.generate(make_request("new", max_tokens=1))
    worker.step()
    assert len(worker.heard(Refused)) == 3


def test_both_ends_of_a_transfer_go_on_while_they_drain() -> None:
    pair = Pair()
    pair.begin(make_request(prompt=9))
    assert json.loads(ask(pair.p, ControlAction.DRAIN).result_json) == {**EMPTY, "num_offers": 1}
    open_at_d = json.loads(ask(pair.d, ControlAction.DRAIN).result_json)
    assert open_at_d == {"num_requests": 1, "num_offers": 0, "num_transfers": 1}
    pair.finish_pulls()
    pair.carry(pair.d.start("r", 500))
    pair.d.run()
    for worker in (pair.p, pair.d):
        assert json.loads(ask(worker, ControlAction.DRAIN).result_json) == EMPTY


def test_a_drain_does_not_wait_for_a_control_that_runs_nor_end_with_a_sleep(worker: Worker) -> None:
    (run,) = worker.ask(ControlAction.SLEEP, control_id=9, level=0)
    assert isinstance(run, RunControl)
    ask(worker, ControlAction.DRAIN)
    worker.feed(ControlDone(run_id=run.run_id))
    assert worker.core.load(0.0).is_draining


@pytest.mark.parametrize(
    ("action", "argument", "text"),
    [
        (ControlAction.SET_ROLE, {"role": "both"}, "role is 'both'; allowed: prefill, decode, mixed"),
        (ControlAction.SET_ROLE, {}, "allowed: an object with role, is_fixed, force"),
        (ControlAction.DRAIN, {"wait": 3}, "allowed: an object with force"),
        (ControlAction.UNDRAIN, {"force": True}, "allowed: an object with no field"),
    ],
)
def test_a_wrong_argument_changes_nothing(
    worker: Worker, action: ControlAction, argument: dict[str, Any], text: str
) -> None:
    before = worker.core.load(0.0)
    result = ask(worker, action, **argument)
    assert result.code is ErrorCode.INVALID_REQUEST
    assert text in result.message
    assert worker.core.load(0.0) == before
