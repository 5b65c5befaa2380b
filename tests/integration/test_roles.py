"""Roles and drains of a real router's workers: over HTTP and gRPC, by command, and by the router itself."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import grpc
import httpx
import pytest

from baton.commands.admin import admin
from baton.commands.cli_arguments import parse
from baton_core.errors import ErrorCode, RequestError
from baton_core.sessions.control_messages import Control, ControlAction, ControlResult
from baton_core.sessions.router_messages import Refused, Reserve, Start
from baton_core.sessions.worker_info import Role, WorkerRates
from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import BatonStub, OperatorStub
from baton_router.core.fleet.role_balance import BalanceConfig
from baton_router.process import core_config
from baton_router.process.http_settings import HttpSettings
from baton_router.process.router import Router
from tests.e2e.calls import answer, ask, draw_prompt, greedy
from tests.integration.http_router import client_of, error_of
from tests.integration.router_cluster import serving
from tests.integration.scripted_worker import ScriptedWorker, until
from tests.integration.worker_cluster import eventually, working

EMPTY = {"num_requests": 0, "num_offers": 0, "num_transfers": 0}
PROMPT = draw_prompt(100, seed=1)


@dataclass(slots=True)
class Site:
    """A router as its operator sees it."""

    http: httpx.AsyncClient
    baton: BatonStub
    operator: OperatorStub
    router: Router
    port: int

    async def is_ready(self) -> bool:
        return self.router.is_ready

    async def post(self, path: str, **query: Any) -> Any:
        return (await self.http.post(path, params=query)).raise_for_status().json()

    async def workers(self) -> dict[str, pb.ModelInfo.Worker]:
        info = await self.baton.GetModelInfo(pb.GetModelInfoRequest())
        return {worker.worker_id: worker for worker in info.workers}

    async def generate(self) -> tuple[list[int], str]:
        """The tokens that follow the prompt, and who decoded them."""
        events = [event async for event in self.baton.Generate(ask(PROMPT, greedy(8)))]
        (output,), finished = answer(events)
        return list(output.token_ids), finished.timings.decode_worker

    async def admin(self, *action: str) -> None:
        """Run the command, in this process."""
        args = parse(["admin", *action, "--address", f"127.0.0.1:{self.port}"])
        assert await asyncio.to_thread(admin, args) == 0


@asynccontextmanager
async def operated(**settings: Any) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        http = HttpSettings(**{"enable_operator_routes": True, **settings.pop("http", {})})
        server = await stack.enter_async_context(serving(http=http, **settings))
        client = await stack.enter_async_context(client_of(server))
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}")
        await stack.enter_async_context(channel)
        yield Site(client, BatonStub(channel), OperatorStub(channel), server._router, server.grpc_port)


@asynccontextmanager
async def pair(**settings: Any) -> AsyncIterator[Site]:
    """With a prefill and a decode worker."""
    async with operated(min_split_tokens=32, **settings) as site, AsyncExitStack() as stack:
        for role in (Role.PREFILL, Role.DECODE):
            await stack.enter_async_context(working(role, site.port))
        await eventually(site.is_ready)
        yield site


async def test_a_drained_worker_gets_nothing_and_who_took_its_part_gives_the_same_tokens(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with pair() as site:
        expected, decoder = await site.generate()
        assert decoder == "decode"
        refused = await site.http.post("/drain?worker_id=decode")
        allowed = "workers without whom another one still decodes, or any with force"
        assert error_of(refused) == (400, "worker_id", f"worker_id is ['decode']; allowed: {allowed}")
        twice = await site.http.post("/drain?worker_id=prefill&worker_id=decode&force=true")
        text = "worker_id is ['prefill', 'decode']; allowed: one value"
        assert error_of(twice) == (400, "worker_id", text)
        assert await site.post("/set_role", worker_id="prefill", role="mixed") == EMPTY
        assert (await site.workers())["prefill"].role == "mixed"
        assert await site.post("/drain", worker_id="decode") == EMPTY
        assert await site.generate() == (expected, "prefill")
        await site.admin("workers")
        await site.admin("drain", "decode", "--wait", "5")
        await site.admin("undrain", "decode")
        await site.admin("set-role", "prefill", "prefill")
        assert await site.generate() == (expected, "decode")
    header, decode, prefill, *said = capsys.readouterr().out.splitlines()
    assert header.split()[:4] == ["WORKER", "ROLE", "STATE", "RUNNING"]
    assert re.match(r"decode +decode +draining +0 +0 +0 +\d+/\d+ ", decode)
    assert re.match(r"prefill +mixed \(set\) +serving +\d", prefill)
    assert said == ["decode is drained: nothing is open", "decode takes requests", "prefill is now prefill"]


async def test_a_request_whose_decode_worker_drains_stays_where_its_prompt_was_computed() -> None:
    settings = {"routing_policy": "round-robin", "min_split_tokens": 32}
    async with operated(**settings) as site, working(Role.MIXED, site.port, name="m"):
        await eventually(site.is_ready)
        ((info, _),) = site.router.fleet.workers()
        late = ScriptedWorker("d", Role.DECODE, identity=info.identity, num_steps=0)

        async def knows_of_the_drain() -> bool:
            return (await site.workers())["d"].is_draining

        async def holds_nothing() -> bool:
            left = (await site.workers())["m"]
            return left.num_available_blocks == left.num_blocks

        async with late.joined(site.port):
            asking = asyncio.ensure_future(site.generate())
            await until(lambda: any(isinstance(one, Start) for one in late.commands))
            late.load = replace(late.load, is_draining=True)
            await eventually(knows_of_the_drain)
            (reserve,) = (one for one in late.commands if isinstance(one, Reserve))
            why = {"code": ErrorCode.OVERLOADED, "message": "this worker is draining"}
            late.client.send(late.router_id, Refused(request_id=reserve.spec.request_id, **why))
            expected, decoder = await asking
            assert decoder == "m"
            assert await site.generate() == (expected, "m")
            await eventually(holds_nothing)


async def test_a_drain_by_force_leaves_requests_to_be_refused_at_once() -> None:
    async with pair() as site:
        assert await site.post("/drain", worker_id="decode", force=True) == EMPTY
        assert (await site.http.get("/health")).status_code == 503
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await site.generate()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        await site.post("/undrain", worker_id="decode")
        assert (await site.generate())[1] == "decode"


async def test_names_that_nobody_has_are_refused_with_those_that_workers_have() -> None:
    async with operated() as site, ScriptedWorker("w1").joined(site.port):
        text = "worker_ids has 'w2'; allowed: w1"
        for path in ("/set_role?role=mixed&", "/drain?", "/undrain?"):
            response = await site.http.post(f"{path}worker_id=w2")
            assert error_of(response) == (404, "worker_id", "worker_id is 'w2'; allowed: w1")
        request = pb.ControlRequest(action="is_sleeping", worker_ids=["w1", "w2"])
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await site.operator.Control(request)
        assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.NOT_FOUND, text)
        with pytest.raises(RequestError, match="worker_ids has 'w2'; allowed: w1"):
            await site.admin("undrain", "w2")


async def test_only_workers_that_are_named_are_asked() -> None:
    async with operated() as site:
        one, other = ScriptedWorker("w1"), ScriptedWorker("w2")
        async with one.joined(site.port), other.joined(site.port):
            asking = asyncio.ensure_future(
                site.operator.Control(pb.ControlRequest(action="is_sleeping", worker_ids=["w2"]))
            )
            await until(lambda: bool(other.commands))
            (asked,) = other.commands
            assert isinstance(asked, Control)
            other.client.send(other.router_id, ControlResult(control_id=asked.control_id))
            assert [result.worker_id for result in (await asking).results] == ["w2"]
            assert one.commands == []


@pytest.mark.parametrize(
    ("http", "text"),
    [
        ({"enable_operator_routes": False}, "takes no orders; start it with --enable-operator-routes"),
        ({"api_keys": ("the-key",)}, "wants a key, by --api-key or BATON_API_KEY: "),
    ],
)
async def test_the_command_says_what_it_lacks(http: dict[str, Any], text: str) -> None:
    async with operated(http=http) as site:
        with pytest.raises(RequestError, match=re.escape(text)):
            await site.admin("undrain", "w1")


async def test_a_router_has_a_worker_change_its_role_where_prefill_is_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quick = partial(BalanceConfig, interval_s=0.02, window=3)
    monkeypatch.setattr(core_config, "BalanceConfig", quick)
    busy, idle = ScriptedWorker("p", Role.PREFILL), ScriptedWorker("d", Role.DECODE)
    rates = WorkerRates(prefill_tokens_per_s=100.0)
    busy.load = replace(busy.load, num_queued_tokens=500, rates=rates)
    async with operated(adaptive_roles=True) as site, busy.joined(site.port), idle.joined(site.port):
        await until(lambda: bool(idle.commands))
        (asked,) = idle.commands
        assert isinstance(asked, Control)
        assert asked.action is ControlAction.SET_ROLE
        assert json.loads(asked.argument_json) == {"role": "mixed", "is_fixed": False, "force": False}
        result = ControlResult(control_id=asked.control_id, result_json="{}", role=Role.MIXED)
        idle.client.send(idle.router_id, result)

        async def is_mixed() -> bool:
            return (await site.workers())["d"].role == "mixed"

        await eventually(is_mixed)
        assert busy.commands == []
