"""No request within the limits holds up a router's event loop: the heaviest ones of every kind, one by one.

What counts is the CPU time of the loop's thread between two waits for events, which other processes leave
alone. The router runs in a process of its own and tells it by its metrics.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import grpc
import httpx
import pytest

from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import BatonStub
from tests.integration.heaviest_requests import HEAVIEST, HEAVIEST_CALLS
from tests.integration.heavy_worker import PATIENT, HeavyWorker
from tests.integration.router_cluster import MODEL
from tests.tiers import one_in

MOST_S: Final = 0.25
"""A bound of the histogram; what holds the loop up by mistake takes seconds."""
WITHIN_S: Final = 240.0
pytestmark = pytest.mark.timeout(WITHIN_S)
_BUCKET: Final = re.compile(r'baton_event_loop_turn_cpu_seconds_bucket\{le="([^"]+)"\} (\S+)')


@dataclass(frozen=True, slots=True)
class Router:
    """A router's process."""

    grpc_address: str
    http_address: str


@pytest.fixture(scope="module")
def router() -> Iterator[Router]:
    read_fd, write_fd = os.pipe()
    command = (sys.executable, "-m", "baton", "router", str(MODEL), "--port", "0", "--grpc-port", "0")
    flags = ("--session-timeout", str(PATIENT.dead_after_s), "--report-fd", str(write_fd))
    process = subprocess.Popen((*command, *flags), pass_fds=(write_fd,))
    try:
        os.close(write_fd)
        with os.fdopen(read_fd) as pipe:
            said = json.loads(pipe.readline())
            yield Router(said["address"], said["http_address"])
    finally:
        process.terminate()
        process.wait(60)


@asynccontextmanager
async def heavy_cluster(router: Router) -> AsyncIterator[httpx.AsyncClient]:
    worker = HeavyWorker()
    async with (
        worker.joined(int(router.grpc_address.rpartition(":")[2])),
        httpx.AsyncClient(base_url=f"http://{router.http_address}", timeout=WITHIN_S) as client,
    ):
        yield client


async def longest_turn_s(client: httpx.AsyncClient, load: Callable[[], Coroutine[Any, Any, None]]) -> float:
    """The bound of the longest turn of the router's loop under a load; under one of three, if need be.

    What the load itself costs comes each time; a collection of garbage or a neighbour on the core does not.
    """
    longest_s = await _longest_turn_s(client, load)
    for _ in range(2):
        if longest_s > MOST_S:
            longest_s = min(longest_s, await _longest_turn_s(client, load))
    return longest_s


async def _longest_turn_s(client: httpx.AsyncClient, load: Callable[[], Coroutine[Any, Any, None]]) -> float:
    before = _turns(await client.get("/metrics"))
    await load()
    after = _turns(await client.get("/metrics"))
    longer = {bound: _longer(after, bound) - _longer(before, bound) for bound in after}
    return min(bound for bound, num_turns in longer.items() if not num_turns)


def _longer(turns: dict[float, float], bound: float) -> float:
    return turns[float("inf")] - turns[bound]


def _turns(metrics: httpx.Response) -> dict[float, float]:
    return {float(found[1]): float(found[2]) for found in _BUCKET.finditer(metrics.text)}


@pytest.mark.parametrize("kind", one_in(8, HEAVIEST))
async def test_no_request_holds_up_the_loop(router: Router, kind: str) -> None:
    path, status, body = HEAVIEST[kind]
    data = json.dumps(body, separators=(",", ":")).encode()
    async with heavy_cluster(router) as client:

        async def ask() -> None:
            async with client.stream("POST", path, content=data) as response:
                told = await response.aread() if response.status_code >= 400 else b""
                assert response.status_code == status, told
                async for _ in response.aiter_raw() if not told else _nothing():
                    pass

        assert await longest_turn_s(client, ask) <= MOST_S


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield b""


@pytest.mark.parametrize("kind", one_in(4, HEAVIEST_CALLS))
async def test_no_call_holds_up_the_loop(router: Router, kind: str) -> None:
    async with heavy_cluster(router) as client, grpc.aio.insecure_channel(router.grpc_address) as channel:

        async def ask() -> None:
            async for _ in BatonStub(channel).Generate(HEAVIEST_CALLS[kind], timeout=WITHIN_S):
                pass

        assert await longest_turn_s(client, ask) <= MOST_S


async def test_tokens_and_texts_over_grpc_hold_up_nobody(router: Router) -> None:
    async with heavy_cluster(router) as client, grpc.aio.insecure_channel(router.grpc_address) as channel:
        stub = BatonStub(channel)

        async def convert() -> None:
            made = await stub.Tokenize(pb.TokenizeRequest(text="word " * 400_000), timeout=WITHIN_S)
            ids = made.token_ids[: 2**19]
            await stub.Detokenize(pb.DetokenizeRequest(token_ids=ids), timeout=WITHIN_S)

        assert await longest_turn_s(client, convert) <= MOST_S


async def test_what_operators_ask_after_many_requests_holds_up_nobody(router: Router) -> None:
    async with heavy_cluster(router) as client:
        for _ in range(2):
            body = {"prompt": ["a"] * 1024, "max_tokens": 2}
            (await client.post("/v1/completions", json=body)).raise_for_status()

        async def ask() -> None:
            paths = ("/debug/requests?limit=256", "/debug/cluster", "/debug/history", "/openapi.json")
            for path in paths:
                (await client.get(path)).raise_for_status()

        assert await longest_turn_s(client, ask) <= MOST_S


async def test_forty_large_bodies_at_once_leave_little_behind(router: Router) -> None:
    data = json.dumps({"prompt": [100 + place % 899 for place in range(830_000)]}).encode()
    async with heavy_cluster(router) as client:

        async def ask() -> None:
            response = await client.post("/v1/completions", content=data)
            assert response.status_code in (400, 503), response.text

        before = _resident_bytes(await client.get("/metrics"))
        await asyncio.gather(*(ask() for _ in range(40)))
        assert _resident_bytes(await client.get("/metrics")) - before < 400 * 2**20


def _resident_bytes(metrics: httpx.Response) -> float:
    found = re.search(r"^process_resident_memory_bytes (\S+)$", metrics.text, re.MULTILINE)
    assert found is not None
    return float(found[1])


async def test_a_client_that_leaves_with_1024_prompts_holds_up_nobody(router: Router) -> None:
    async with heavy_cluster(router) as client:

        async def leave() -> None:
            body = {"prompt": ["a"] * 1024, "max_tokens": 60, "stream": True}
            async with client.stream("POST", "/v1/completions", json=body) as response:
                await anext(response.aiter_raw())
            while (await client.get("/load")).json()["server_load"]:  # noqa: ASYNC110 (of another process)
                await asyncio.sleep(0.05)

        assert await longest_turn_s(client, leave) <= MOST_S
