"""A gateway of the inference extension: a real Envoy, the endpoint picker of a router, real workers."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton_core.sessions.worker_info import Role
from baton_router.main import RouterServer
from baton_router.process.admission_settings import AdmissionSettings
from baton_router.process.http_settings import HttpSettings
from tests.e2e.calls import draw_prompt
from tests.integration.envoy import DESTINATION, gateway
from tests.integration.router_cluster import serving
from tests.integration.scripted_worker import until
from tests.integration.worker_cluster import Gate, made, working
from tests.redis_server import needs_redis, redis_server
from tools.k8s.programs import find_program

pytestmark = pytest.mark.skipif(
    find_program("envoy") is None, reason="envoy is not there: python -m tools.k8s.programs fetches it"
)
KEY: Final = "key-a"
PREFILL, DECODE = "x-baton-prefill-worker", "x-baton-decode-worker"
SERVICES: Final = ("liveness", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor")


async def ask(
    client: httpx.AsyncClient, prompt: list[int], num_tokens: int = 4, **headers: str
) -> httpx.Response:
    body = {"prompt": prompt, "max_tokens": num_tokens, "ignore_eos": True}
    headers = {"authorization": f"Bearer {KEY}", **headers}
    return await client.post("/v1/completions", json=body, headers=headers)


async def health_of(server: RouterServer) -> list[bool]:
    """Return whether each service of the picker's health serves."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.picker_port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        replies = [await stub.Check(health_pb2.HealthCheckRequest(service=name)) for name in SERVICES]
    return [reply.status == health_pb2.HealthCheckResponse.SERVING for reply in replies]


async def picks_of(server: RouterServer) -> set[str]:
    """Return the outcomes of picks that the router's metrics count."""
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {KEY}"}) as client:
        page = (await client.get(f"http://127.0.0.1:{server.http_port}/metrics")).text
    num_timed = float(re.findall(r"^baton_pick_duration_seconds_count (\S+)", page, re.MULTILINE)[0])
    counts = re.findall(r'^baton_picks_total\{outcome="(\w+)"\} (\S+)', page, re.MULTILINE)
    assert sum(float(count) for _, count in counts) == num_timed
    return {outcome for outcome, count in counts if float(count)}


async def check_picks(server: RouterServer, client: httpx.AsyncClient, seed: int) -> None:
    """Requests run on the workers that the picker has named: those that have computed their prefix."""
    own = f"127.0.0.1:{server.http_port}"
    for prompt in (draw_prompt(400, seed=seed), draw_prompt(400, seed=seed + 1)):
        workers: set[str] = set()
        for number in range(3):
            response = await ask(client, prompt, **{PREFILL: "nobody", DECODE: "nobody"})
            assert response.status_code == 200, response.text
            assert {response.headers[f"x-seen-{DESTINATION}"], response.headers["x-seen-metadata"]} == {own}
            named = [response.headers[f"x-seen-{name}"] for name in (PREFILL, DECODE)]
            record = server.router.core.log.get(response.headers["x-request-id"])
            assert record is not None
            chosen = record.decisions[-1].chosen
            assert chosen is not None
            assert [chosen.prefill, chosen.decode] == named
            assert "an endpoint picker has named them" in record.decisions[-1].reason
            num_cached = response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert (named[0] in workers, num_cached > 300) == (number > 0, number > 0)
            workers.update(named)


async def check_replies(client: httpx.AsyncClient) -> None:
    """Requests that nothing is picked for, and those that no router would take."""
    client.headers["authorization"] = f"Bearer {KEY}"
    assert (await client.get("/v1/models")).status_code == 200
    refused = await client.post("/v1/completions", json={"prompt": 5.5})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt")
    assert (await ask(client, [5, 6], authorization="Bearer c")).status_code == 401


async def check_large_body(client: httpx.AsyncClient) -> None:
    """A body may be as large as --max-body-bytes says, also where it comes in one message."""
    content = b'{"prompt": [5, 6], "max_tokens": 2' + b" " * 5 * 2**20 + b"}"
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    response = await client.post("/v1/completions", content=content, headers=headers)
    assert response.status_code == 200, response.text


async def check_shedding(client: httpx.AsyncClient, gate: Gate) -> None:
    """Requests that the workers have no room for are refused, once as many wait as may."""
    gate.close()
    prompts = [draw_prompt(100, seed=seed) for seed in range(40, 60)]
    asked = [asyncio.create_task(ask(client, prompt, 2)) for prompt in prompts]
    await until(lambda: any(task.done() for task in asked))
    gate.open()
    responses = await asyncio.gather(*asked)
    statuses = Counter(response.status_code for response in responses)
    assert statuses.keys() == {200, 429}, statuses
    shed = next(response for response in responses if response.status_code == 429)
    assert shed.json()["error"]["message"] == "1 requests wait for a worker, the maximum"
    assert int(shed.headers["retry-after"]) >= 1


async def test_an_envoy_sends_requests_where_the_picker_says(tmp_path: Path) -> None:
    # with several keys, requests wait at the router
    http = HttpSettings(api_keys=(KEY, "key-b"), max_body_bytes=6 * 2**20)
    admission = AdmissionSettings(max_queued_requests=1)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(picker_port=0, http=http, admission=admission))
        client = await stack.enter_async_context(gateway(tmp_path, server.picker_port))
        response = await ask(client, [5, 6])
        assert response.status_code == 503
        assert response.json()["error"]["message"] == "no worker prefills: none is registered"
        assert await health_of(server) == [True, False, False]
        gate = Gate()
        for name in ("p0", "p1", "d0", "d1"):
            role = Role.PREFILL if name.startswith("p") else Role.DECODE
            worker = working(role, server.grpc_port, name=name, gate=gate, key=KEY, max_num_seqs=2)
            await stack.enter_async_context(worker)
        await until(lambda: len(server.router.fleet.workers()) == 4)
        assert await health_of(server) == [True, True, True]
        await check_picks(server, client, 10)
        await check_replies(client)
        await check_shedding(client, gate)
        assert await picks_of(server) == {"workers", "router", "waiting", "refused"}
        port = server.picker_port
        async with gateway(tmp_path, port, body_mode="BUFFERED", subset=["127.0.0.1"]) as buffered:
            await check_picks(server, buffered, 20)
            await check_large_body(buffered)
        async with gateway(tmp_path, port, subset=["127.0.0.2:80"]) as elsewhere:
            assert (await ask(elsewhere, [5, 6])).status_code == 503


@needs_redis
async def test_picks_name_the_other_routers_of_a_redis_and_go_on_without_it(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(redis_server(tmp_path))
        one = await stack.enter_async_context(serving(picker_port=0, redis=redis.settings()))
        other = await stack.enter_async_context(serving(picker_port=0, redis=redis.settings()))
        ports = [server.http_port for server in (one, other)]
        client = await stack.enter_async_context(gateway(tmp_path, one.picker_port, pool=ports))
        own, second = (f"127.0.0.1:{port}" for port in ports)
        worker, _ = await stack.enter_async_context(made(Role.MIXED, 0, name="m", redis=redis.settings()))
        running = asyncio.create_task(worker.run())
        try:
            await until(lambda: all(len(server.router.fleet.workers()) == 1 for server in (one, other)))

            async def destinations() -> str:
                response = await client.post("/v1/completions", json={"prompt": [5, 6], "max_tokens": 2})
                assert response.status_code == 200, response.text
                return response.headers[f"x-seen-{DESTINATION}"]

            async def become(wanted: str) -> None:
                async with asyncio.timeout(30):
                    while await destinations() != wanted:  # noqa: ASYNC110 (each look is a request)
                        await asyncio.sleep(0.05)

            await become(f"{own},{second}")
            redis.kill()
            for _ in range(20):
                assert (await destinations()).split(",")[0] == own
            await redis.start()
            await become(f"{own},{second}")
            await other.stop()
            await become(own)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
