from __future__ import annotations

import asyncio

import pytest

from baton_core.errors import ErrorCode, RequestError
from baton_core.sessions.control_messages import Control, ControlAction, ControlResult
from baton_router.core.fleet.fleet import Fleet
from baton_router.operations.dispatch_hold import DispatchHold
from baton_router.operations.operations import Operations
from tests.builders import make_worker_info
from tests.integration.scripted_worker import until


async def test_a_change_of_roles_does_not_wait_for_an_earlier_one_without_end() -> None:
    sent: list[Control] = []
    fleet = Fleet()
    for name in ("a", "b"):
        fleet.join(make_worker_info(name))
    hold = DispatchHold(lambda event: None, lambda: 0)
    operations = Operations(fleet, lambda worker_id, control: sent.append(control), hold, lambda: 0)
    first = asyncio.create_task(operations.control(ControlAction.DRAIN, worker_ids=("a",), timeout_s=5.0))
    await until(lambda: len(sent) == 1)
    with pytest.raises(RequestError) as raised:
        await operations.control(ControlAction.UNDRAIN, worker_ids=("a",), timeout_s=0.05)
    assert raised.value.code is ErrorCode.DEADLINE_EXCEEDED
    assert str(raised.value) == "undrain waited 0.05 s for an earlier change of roles to end"
    operations.on_result("a", ControlResult(control_id=sent[0].control_id))
    assert (await first)["a"].code is None
    second = asyncio.create_task(operations.control(ControlAction.UNDRAIN, worker_ids=("a",)))
    await until(lambda: len(sent) == 2)
    operations.on_result("a", ControlResult(control_id=sent[1].control_id))
    assert (await second)["a"].code is None


async def test_no_request_begins_while_a_reset_waits_for_hand_overs() -> None:
    sent: list[Control] = []
    reasons: list[str] = []
    fleet = Fleet()
    fleet.join(make_worker_info("a"))
    hold = DispatchHold(lambda event: reasons.append(event.why), lambda: 1)
    operations = Operations(fleet, lambda worker_id, control: sent.append(control), hold, lambda: 1)
    for argument, is_held in (("{}", False), ('{"reset_running_requests": true}', True)):
        resetting = asyncio.create_task(operations.control(ControlAction.RESET_PREFIX_CACHE, argument))
        await until(lambda: len(sent) == 1)
        control = sent.pop()
        assert (control.argument_json, hold.is_holding) == (argument, is_held)
        assert (control.timeout_s <= 20.0) == is_held
        operations.on_result("a", ControlResult(control_id=control.control_id))
        assert (await resetting)["a"].code is None
        assert not hold.is_holding
    assert reasons == ["an operator resets the prefix caches", ""]
