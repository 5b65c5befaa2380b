from __future__ import annotations

import json
from typing import Any

import pytest

from baton_core.errors import InvalidRequestError
from baton_core.sessions.control_messages import MAX_JSON_BYTES, ControlAction
from baton_worker.controls.control_wire import decode_control, encode_control, encode_result
from baton_worker.controls.engine_operations import (
    ApplyModel,
    CallWorker,
    Control,
    Profile,
    ResetPrefixCache,
    Sleep,
    WakeUp,
)


@pytest.mark.parametrize(
    "command",
    [
        Sleep(level=2),
        WakeUp(),
        WakeUp(tags=("weights", "scheduling")),
        ApplyModel(function="m:f"),
        CallWorker(method="m:f"),
        CallWorker(method="m:f", args=(1, "two", [3.5, None]), kwargs={"a": {"b": True}}),
        Profile(is_start=True, prefix="mine"),
        Profile(is_start=False),
    ],
)
def test_a_worker_reads_what_was_asked(command: Control) -> None:
    assert decode_control(*encode_control(command)) == command


def test_a_reset_has_no_argument() -> None:
    assert encode_control(ResetPrefixCache(preempts=True)) == (
        ControlAction.RESET_PREFIX_CACHE,
        '{"reset_running_requests": true}',
    )


@pytest.mark.parametrize(
    ("command", "field"),
    [
        (ApplyModel(function=len), "func"),
        (CallWorker(method=print), "method"),
        (CallWorker(method="m:f", args=(object(),)), "argument"),
        (CallWorker(method="m:f", kwargs={"x": float("nan")}), "argument"),
    ],
)
def test_what_json_cannot_hold_is_refused_by_field(command: Control, field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        encode_control(command)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("action", "argument", "text"),
    [
        ("sleep", {"level": 3}, "level is 3; allowed: 0, 1, 2"),
        ("sleep", {"level": "1"}, "allowed: an object with level"),
        ("sleep", {"levle": 1}, "allowed: an object with level"),
        ("sleep", [], "allowed: an object with level"),
        ("wake_up", {"tags": ["disk"]}, "tags is 'disk'; allowed: weights, kv_cache, scheduling"),
        ("wake_up", {"tags": "weights"}, "allowed: an object with tags"),
        ("start_profile", {"prefix": "../../etc/x"}, "profile_prefix is '../../etc/x'"),
        ("stop_profile", {"prefix": "x"}, "allowed: an object with no field"),
        ("apply_model", {}, "allowed: an object with func"),
        ("collective_rpc", {"method": "m:f", "args": 1}, "allowed: an object with method, args, kwargs"),
        ("is_sleeping", {}, "action is 'is_sleeping'; allowed: one that a worker's engine executes"),
    ],
)
def test_an_argument_that_is_wrong_is_refused(action: str, argument: Any, text: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        decode_control(ControlAction(action), json.dumps(argument))
    assert text in str(caught.value)


def test_results_are_bounded_json() -> None:
    assert json.loads(encode_result({"a": [1, None, "é"]})) == {"a": [1, None, "é"]}
    assert len(encode_result("x" * (MAX_JSON_BYTES - 2))) == MAX_JSON_BYTES
    for result, text in (("x" * MAX_JSON_BYTES, "at most 65536 bytes"), (object(), "what JSON can hold")):
        with pytest.raises(InvalidRequestError, match=text) as caught:
            encode_result(result)
        assert caught.value.field == "result"
