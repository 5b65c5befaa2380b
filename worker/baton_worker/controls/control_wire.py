"""Between what operators ask, as the Python interface has it, and an action with a JSON argument.

Nothing is pickled: a function travels as its name, everything else as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, assert_never

import msgspec

from baton_core.errors import InvalidRequestError
from baton_core.sessions.control_messages import MAX_JSON_BYTES, ControlAction
from baton_core.sessions.weight_arguments import CheckWeightsArgument, SwitchWeightsArgument
from baton_worker.controls.dotted_names import require_name
from baton_worker.controls.engine_operations import (
    ApplyModel,
    CallWorker,
    CheckAdapter,
    CheckWeights,
    Control,
    EngineOperation,
    FinishWeightUpdate,
    PinAdapters,
    Profile,
    ResetPrefixCache,
    Sleep,
    StartWeightUpdate,
    SwitchWeights,
    UpdateWeights,
    WakeUp,
)


class _Argument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    pass


class _Sleep(_Argument):
    level: int = 1


class _WakeUp(_Argument):
    tags: tuple[str, ...] = ()


class _CheckAdapter(_Argument):
    path: str
    digest: str


class _Profile(_Argument):
    prefix: str = ""


class _Apply(_Argument):
    func: str


class _Call(_Argument):
    method: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = msgspec.field(default_factory=dict)


_OPERATIONS: Final[dict[ControlAction, tuple[type[msgspec.Struct], Callable[..., EngineOperation]]]] = {
    ControlAction.SLEEP: (_Sleep, Sleep),
    ControlAction.WAKE_UP: (_WakeUp, WakeUp),
    ControlAction.START_PROFILE: (_Profile, partial(Profile, is_start=True)),
    ControlAction.STOP_PROFILE: (_Argument, partial(Profile, is_start=False)),
    ControlAction.APPLY_MODEL: (_Apply, lambda func: ApplyModel(function=func)),
    ControlAction.COLLECTIVE_RPC: (_Call, CallWorker),
    ControlAction.CHECK_ADAPTER: (_CheckAdapter, CheckAdapter),
    ControlAction.CHECK_WEIGHTS: (CheckWeightsArgument, CheckWeights),
    ControlAction.SWITCH_WEIGHTS: (SwitchWeightsArgument, SwitchWeights),
}
"""The argument of each action, and the operation that is made of its fields."""


def encode_control(command: Control | EngineOperation) -> tuple[ControlAction, str]:
    """Return the action that a command asks for, and its argument.

    Raises:
        InvalidRequestError: it names a function of this process, or a value that JSON cannot hold.
    """
    match command:
        case Sleep(level=level):
            return ControlAction.SLEEP, _to_json({"level": level})
        case WakeUp(tags=tags):
            return ControlAction.WAKE_UP, _to_json({"tags": tags})
        case ResetPrefixCache(preempts=preempts):
            return ControlAction.RESET_PREFIX_CACHE, _to_json({"reset_running_requests": preempts})
        case ApplyModel(function=function):
            return ControlAction.APPLY_MODEL, _to_json({"func": require_name("func", function)})
        case CallWorker():
            method = require_name("method", command.method)
            argument = {"method": method, "args": list(command.args), "kwargs": dict(command.kwargs)}
            return ControlAction.COLLECTIVE_RPC, _to_json(argument)
        case Profile(is_start=True, prefix=prefix):
            return ControlAction.START_PROFILE, _to_json({"prefix": prefix})
        case Profile():
            return ControlAction.STOP_PROFILE, "{}"
        case PinAdapters(numbers=numbers):
            return ControlAction.PIN_ADAPTERS, _to_json({"numbers": sorted(numbers)})
        case StartWeightUpdate(is_checkpoint_format=is_checkpoint_format):
            return ControlAction.START_WEIGHT_UPDATE, _to_json({"is_checkpoint_format": is_checkpoint_format})
        case UpdateWeights(path=path):
            return ControlAction.UPDATE_WEIGHTS, _to_json({"path": path})
        case FinishWeightUpdate():
            return ControlAction.FINISH_WEIGHT_UPDATE, "{}"
        case CheckAdapter(path=path, digest=digest):
            return ControlAction.CHECK_ADAPTER, _to_json({"path": path, "digest": digest})
        case CheckWeights(path=path):
            return ControlAction.CHECK_WEIGHTS, _to_json({"path": path})
        case SwitchWeights(path=path, weights=weights):
            return ControlAction.SWITCH_WEIGHTS, _to_json({"path": path, "weights": weights})
    assert_never(command)


def decode_control(action: ControlAction, argument_json: str) -> EngineOperation:
    """Read what a worker is asked.

    Raises:
        InvalidRequestError: the argument is none of this action, or one of its fields is out of range.
    """
    kind, operation = _OPERATIONS.get(action, (_Argument, None))
    try:
        argument = msgspec.json.decode(argument_json, type=kind)
    except msgspec.DecodeError as error:
        fields = ", ".join(kind.__struct_fields__) or "no field"
        allowed = f"an object with {fields} ({error})"
        raise InvalidRequestError(f"argument of {action}", argument_json, allowed) from None
    if operation is None:
        raise InvalidRequestError("action", action, "one that a worker's engine executes")
    return operation(**msgspec.structs.asdict(argument))


def encode_result(result: object) -> str:
    """Return what a function has returned.

    Raises:
        InvalidRequestError: JSON cannot hold it, or it is too long.
    """
    text = _to_json(result, "result")
    if len(text.encode()) > MAX_JSON_BYTES:
        raise InvalidRequestError(
            "result", f"{len(text)} characters", f"at most {MAX_JSON_BYTES} bytes of JSON"
        )
    return text


def _to_json(value: object, field: str = "argument") -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        shown = dict(value) if isinstance(value, Mapping) else value
        raise InvalidRequestError(field, shown, f"what JSON can hold ({error})") from None
