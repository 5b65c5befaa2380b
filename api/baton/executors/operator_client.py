"""Asks the workers of a router what operators ask, for clusters of processes that this one has started."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import grpc

from baton.executors.request_encoder import served_name
from baton.executors.router_client import request_error
from baton.executors.serving_process import ServingProcess
from baton_core.errors import ErrorCode, InvalidRequestError, RequestError
from baton_core.requests.adapter import Adapter
from baton_core.sessions.control_messages import UPDATE_TIMEOUT_S, ControlAction
from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import OperatorStub
from baton_worker.controls.control_wire import encode_control
from baton_worker.controls.engine_operations import (
    CallWorker,
    Control,
    FinishWeightUpdate,
    PinAdapters,
    ResetPrefixCache,
    Sleep,
    UpdateWeights,
)

_TIMEOUT_S: Final = 120.0
_GRACE_S: Final = 5.0
"""After the timeout, within which the router's own error, which says more, comes first."""
_SETTLE_WITHIN_S: Final = 20.0
"""Time that workers have to release the blocks of requests that have just ended."""
_SETTLE_EVERY_S: Final = 0.05


def ask_workers(process: ServingProcess, command: Control, *, has_open_requests: bool) -> list[Any]:
    """Ask each worker; returns their answers, in the order of the workers' names.

    Waits for the ends of requests that are over for their caller, but not yet for all workers.

    Raises:
        InvalidRequestError: it cannot be done while requests are open; or it names a function of this
            process, or a value that JSON cannot hold.
        RequestError: a worker could not do it; the message names it. Or the processes have ended.
    """
    process.require_running()
    if has_open_requests and isinstance(command, ResetPrefixCache) and not command.preempts:
        return [False]
    if has_open_requests and isinstance(command, Sleep) and command.level:
        raise InvalidRequestError("level", command.level, "0 while requests are open")
    action, argument_json = encode_control(command)
    timeout_s = _TIMEOUT_S
    match command:
        case CallWorker(timeout_s=chosen_s) if chosen_s is not None:
            timeout_s = chosen_s
        case UpdateWeights() | FinishWeightUpdate():
            timeout_s = UPDATE_TIMEOUT_S
    request = pb.ControlRequest(action=action, argument_json=argument_json, timeout_s=timeout_s)
    results = _ask_until_settled(process, request)
    for result in results:
        if result.error_code:
            raise RequestError(ErrorCode(result.error_code), f"worker {result.worker_id}: {result.message}")
    answers = [json.loads(result.result_json) for result in results]
    if isinstance(command, ResetPrefixCache):
        return [not answer["num_in_use"] for answer in answers]
    return answers


class AdapterServing:
    """Has the router of a process serve adapters, one at a time. Any thread may call it."""

    def __init__(self, process: ServingProcess) -> None:
        self._process = process
        self._lock = threading.Lock()
        self._served_s: dict[str, float] = {}
        """The monotonic times at which the router began to serve adapters, by name."""
        self._pins: PinAdapters | None = None
        """The adapters that were pinned last."""

    def ask_workers(self, command: Control, *, has_open_requests: bool) -> list[Any]:
        """As the function of this name; a router that starts again is told what was pinned."""
        ask = partial(ask_workers, self._process, command, has_open_requests=has_open_requests)
        if not isinstance(command, PinAdapters):
            return ask()
        with self._lock:
            answers, self._pins = ask(), command
        return answers

    def serve(self, adapter: Adapter, asked_s: float) -> None:
        """Have the router serve an adapter, unless it has begun to since `asked_s`: perhaps it started again.

        Raises:
            BatonError: the folder cannot be used, does not fit the model, or has changed since it was read.
        """
        name = served_name(adapter)
        argument = {
            "lora_name": name,
            "lora_path": adapter.path,
            "digest": adapter.digest,
            "lora_int_id": adapter.number,
            "shown_name": adapter.name,
        }
        argument_json = json.dumps(argument)
        request = pb.ControlRequest(action=ControlAction.SERVE_ADAPTER, argument_json=argument_json)
        with self._lock, self._process.access.open_channel(self._process.address) as channel:
            if self._served_s.get(name, -math.inf) > asked_s:
                return
            if self._pins is not None:
                ask_workers(self._process, self._pins, has_open_requests=True)
            try:
                OperatorStub(channel).Control(request, timeout=_TIMEOUT_S)  # type: ignore[no-untyped-call]
            except grpc.RpcError as error:
                raise request_error(error) from None
            self._served_s[name] = time.monotonic()


def _ask_until_settled(
    process: ServingProcess, request: pb.ControlRequest
) -> Sequence[pb.ControlResponse.WorkerResult]:
    settled_at = time.monotonic() + _SETTLE_WITHIN_S
    with process.access.open_channel(process.address) as channel:
        stub = OperatorStub(channel)  # type: ignore[no-untyped-call]
        while True:
            try:
                response = stub.Control(request, timeout=request.timeout_s + _GRACE_S)
            except grpc.RpcError as error:
                raise request_error(error) from None
            results: Sequence[pb.ControlResponse.WorkerResult] = response.results
            if not _is_unsettled(request.action, results) or time.monotonic() > settled_at:
                return results
            time.sleep(_SETTLE_EVERY_S)


def _is_unsettled(action: str, results: Sequence[pb.ControlResponse.WorkerResult]) -> bool:
    """True if a worker still has blocks in use."""
    match action:
        case ControlAction.SLEEP:
            return any(result.error_code == ErrorCode.OVERLOADED for result in results)
        case ControlAction.RESET_PREFIX_CACHE:
            answers = [json.loads(result.result_json) for result in results if not result.error_code]
            return any(answer["num_in_use"] for answer in answers)
        case _:
            return False
