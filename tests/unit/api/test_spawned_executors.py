"""Executors of processes of their own, before a router that knows adapters only until it starts again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from baton import EngineArgs
from baton.executors import async_spawned_executor, spawned_executor
from baton.executors.executor import Inbox
from baton_core.errors import ErrorCode, RequestError
from baton_core.requests.adapter import Adapter
from baton_core.requests.sampling_params import SamplingParams
from baton_core.sessions.control_messages import ControlAction
from baton_core.sessions.router_messages import RequestSpec
from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1 import baton_pb2_grpc
from baton_router.requests.generation import Finished
from baton_service.router_access import RouterAccess
from baton_worker.controls.engine_operations import PinAdapters

ADAPTER = Adapter(name="a", digest="d1", path="/a")


class Router(baton_pb2_grpc.BatonServicer, baton_pb2_grpc.OperatorServicer):
    """Serves the adapters that it was told to."""

    def __init__(self) -> None:
        self.served: set[str] = set()
        self.may_serve = True
        self.num_asked = 0
        self.pinned: list[list[int]] = []
        self.shown_names: list[str] = []

    def Generate(self, request: pb.GenerateRequest, context: Any) -> Iterator[pb.GenerateEvent]:  # noqa: N802
        if request.model and request.model not in self.served:
            context.abort(grpc.StatusCode.NOT_FOUND, "no such model")
        yield pb.GenerateEvent(finished=pb.FinishedEvent(request_id=request.request_id))

    def Control(self, request: pb.ControlRequest, context: Any) -> pb.ControlResponse:  # noqa: N802
        self.num_asked += 1
        if request.action == ControlAction.PIN_ADAPTERS:
            self.pinned.append(json.loads(request.argument_json)["numbers"])
        elif self.may_serve:
            asked = json.loads(request.argument_json)
            self.served.add(asked["lora_name"])
            self.shown_names.append(asked["shown_name"])
        return pb.ControlResponse()


@pytest.fixture
def router(monkeypatch: pytest.MonkeyPatch) -> Iterator[Router]:
    router, server = Router(), grpc.server(ThreadPoolExecutor(2))
    baton_pb2_grpc.add_BatonServicer_to_server(router, server)  # type: ignore[no-untyped-call]
    baton_pb2_grpc.add_OperatorServicer_to_server(router, server)  # type: ignore[no-untyped-call]
    process = SimpleNamespace(
        access=RouterAccess(key="k"),
        address=f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}",
        max_model_len=100,
        num_blocks=10,
        pooling=None,
        require_running=lambda: None,
        close=lambda: None,
    )
    for module in (spawned_executor, async_spawned_executor):
        monkeypatch.setattr(module, "ServingProcess", lambda args: process)
    server.start()
    yield router
    server.stop(None).wait()


def spec(number: int) -> RequestSpec:
    params = SamplingParams(max_tokens=1)
    return RequestSpec(request_id=str(number), prompt_token_ids=(1,), params=params, adapter=ADAPTER)


def start_again(router: Router, number: int) -> None:
    """Forget the adapters; from the third start on it takes none."""
    router.served.clear()
    router.may_serve = number < 2


def check_ends(ends: list[Any]) -> None:
    """Check the ends of three requests, one after each start."""
    assert [type(end) for end in ends] == [Finished, Finished, RequestError]
    assert ends[2].code == ErrorCode.NOT_FOUND


def test_an_adapter_is_served_again_by_a_router_that_started_again(router: Router) -> None:
    executor, ends = spawned_executor.SpawnedExecutor(EngineArgs()), []
    for number in range(3):
        start_again(router, number)
        executor.submit(spec(number))
        ((_, event),) = executor.step()
        ends.append(event)
    executor.close()
    check_ends(ends)


async def test_the_same_for_asynchronous_callers(router: Router) -> None:
    executor, ends = async_spawned_executor.AsyncSpawnedExecutor(EngineArgs()), []
    for number in range(3):
        start_again(router, number)
        executor.submit(spec(number), inbox := Inbox())
        async with asyncio.timeout(10):
            ends += await inbox.take()
    executor.close()
    check_ends(ends)


def test_an_adapter_of_many_requests_is_served_once(router: Router) -> None:
    executor = spawned_executor.SpawnedExecutor(EngineArgs())
    for number in range(8):
        executor.submit(spec(number))
    ends: list[Any] = []
    while len(ends) < 8:
        ends += executor.step()
    executor.close()
    assert {type(end) for _, end in ends} == {Finished}
    assert router.num_asked == 1


def test_a_router_that_started_again_is_told_what_is_pinned(router: Router) -> None:
    executor = spawned_executor.SpawnedExecutor(EngineArgs())
    assert executor.control(PinAdapters(numbers=frozenset({7, 3}))) == []
    assert router.pinned == [[3, 7]]
    executor.submit(spec(0))
    executor.step()
    executor.close()
    assert router.pinned == [[3, 7], [3, 7]]
    assert router.served == {"0:d1"}
    assert router.shown_names == ["a"]
