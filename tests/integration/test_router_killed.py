"""A router is killed under streams that it serves; their clients go on at the other one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import httpx
from msgspec.structs import replace

from baton import SamplingParams
from baton.executors.resuming_client import ResumingClient
from baton_core.sessions.worker_info import Role
from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import BatonStub
from baton_service.router_access import RouterAccess
from tests.e2e.calls import answer, ask, draw_prompt
from tests.integration.http_router import chunks_of, client_of
from tests.integration.router_cluster import MODEL, serving
from tests.integration.scripted_worker import until
from tests.integration.worker_cluster import Gate, eventually, working

WITHIN_S = 100
SAMPLED = SamplingParams(temperature=0.9, max_tokens=24, ignore_eos=True)
ASKED = (SAMPLED, replace(SAMPLED, n=2, frequency_penalty=0.5), replace(SAMPLED, temperature=0.0))
PROMPTS = [draw_prompt(40, seed=number) for number in range(len(ASKED))]
BODY: dict[str, Any] = {
    "prompt": "The os module",
    "temperature": 0.9,
    "seed": 5,
    "max_tokens": 24,
    "ignore_eos": True,
    "return_token_ids": True,
    "stream": True,
}


@asynccontextmanager
async def router_process() -> AsyncIterator[tuple[asyncio.subprocess.Process, dict[str, str]]]:
    """A router of its own, and where it says to listen."""
    read_fd, write_fd = os.pipe()
    flags = ("--port", "0", "--grpc-port", "0", "--split", "never", "--session-timeout", "10")
    names = ("--served-model-name", "tiny", "--report-fd", str(write_fd))
    command = (sys.executable, "-m", "baton", "router", str(MODEL), *names, *flags)
    process = await asyncio.create_subprocess_exec(*command, pass_fds=(write_fd,))
    os.close(write_fd)
    try:
        with os.fdopen(read_fd) as pipe:
            yield process, json.loads(await asyncio.to_thread(pipe.readline))
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


class Streaming:
    """Clients of both routers, each with one stream."""

    def __init__(self, addresses: list[str]) -> None:
        self.events: list[list[pb.GenerateEvent]] = [[] for _ in ASKED]
        self.chunks: list[dict[str, Any]] = []
        self._addresses = addresses

    @property
    def num_begun(self) -> int:
        """Streams of which something has come."""
        return sum(bool(heard) for heard in (*self.events, self.chunks))

    def ask(self, number: int) -> None:
        """Follow a request to its end, over gRPC; in a thread of its own."""
        client = ResumingClient(self._addresses, RouterAccess())
        for event in client.generate(ask(PROMPTS[number], ASKED[number])):
            self.events[number].append(event)

    async def ask_http(self, doomed: httpx.AsyncClient, survivor: httpx.AsyncClient) -> None:
        """The same over HTTP, by hand."""
        with contextlib.suppress(httpx.RemoteProtocolError, httpx.ReadError):
            async with doomed.stream("POST", "/v1/completions", json=BODY) as response:
                async for line in response.aiter_lines():
                    if line:
                        self.chunks.append(json.loads(line.removeprefix("data: ")))
        given = {
            "resume_token": self.chunks[0]["resume_token"],
            "num_received_tokens": len(http_answer(self.chunks)[1]),
        }
        assert 0 < given["num_received_tokens"] < BODY["max_tokens"]
        self.chunks += chunks_of((await survivor.post("/v1/completions", json={**BODY, **given})).text)


def http_answer(chunks: list[dict[str, Any]]) -> tuple[str, list[int], list[str]]:
    choices = [chunk["choices"][0] for chunk in chunks]
    return (
        "".join(choice["text"] for choice in choices),
        [token_id for choice in choices for token_id in choice["token_ids"]],
        [choice["finish_reason"] for choice in choices if choice["finish_reason"]],
    )


def test_streams_of_a_killed_router_go_on_at_the_other_one() -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            process, said = await stack.enter_async_context(router_process())
            survivor = await stack.enter_async_context(serving(split="never"))
            gate, port = Gate(), int(said["address"].rpartition(":")[2])
            settings: dict[str, Any] = {"also": (survivor.grpc_port,), "gate": gate}
            await stack.enter_async_context(working(Role.MIXED, port, **settings))
            addresses = [said["address"], f"127.0.0.1:{survivor.grpc_port}"]
            channels = [await stack.enter_async_context(grpc.aio.insecure_channel(one)) for one in addresses]
            stubs = [BatonStub(channel) for channel in channels]
            for stub in stubs:
                await eventually(lambda stub=stub: answers(stub), 60.0)
            here = await stack.enter_async_context(client_of(survivor))
            there = await stack.enter_async_context(
                httpx.AsyncClient(base_url=f"http://{said['http_address']}", timeout=WITHIN_S)
            )

            gate.close()
            streaming = Streaming(addresses)
            asking = [asyncio.create_task(asyncio.to_thread(streaming.ask, i)) for i in range(len(ASKED))]
            asking.append(asyncio.create_task(streaming.ask_http(there, here)))
            abandoned = stubs[0].Generate(ask(PROMPTS[0], SAMPLED))
            await eventually(lambda: has_requests(stubs[1], len(asking) + 1))
            gate.let_through(6)
            await until(lambda: streaming.num_begun == len(asking) and gate.is_holding)
            process.kill()
            await process.wait()
            gate.open()
            await asyncio.gather(*asking)
            abandoned.cancel()

            await eventually(lambda: is_idle(stubs[1]))
            for number, events in enumerate(streaming.events):
                completions, finished = answer(events)
                params = replace(ASKED[number], seed=finished.seed)
                again = [event async for event in stubs[1].Generate(ask(PROMPTS[number], params))]
                expected, end = answer(again)
                assert completions == expected
                assert finished.usage.completion_tokens == end.usage.completion_tokens
            whole = chunks_of((await here.post("/v1/completions", json=BODY)).text)
            assert http_answer(streaming.chunks) == http_answer(whole)

    asyncio.run(asyncio.wait_for(scenario(), WITHIN_S))


async def has_requests(stub: BatonStub, num_requests: int) -> bool:
    """Say if the one worker has so many requests."""
    (worker,) = (await stub.GetModelInfo(pb.GetModelInfoRequest())).workers
    return worker.num_running + worker.num_waiting == num_requests


async def answers(stub: BatonStub) -> bool:
    """Return whether its router has the worker, which has computed its first steps."""
    try:
        return bool([event async for event in stub.Generate(ask(PROMPTS[0], SAMPLED))])
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise
        return False


async def is_idle(stub: BatonStub) -> bool:
    """Return whether the worker has freed the dead router's requests and all of their blocks."""
    (worker,) = (await stub.GetModelInfo(pb.GetModelInfoRequest())).workers
    is_free = worker.num_available_blocks == worker.num_blocks
    return is_free and (worker.num_running, worker.num_waiting) == (0, 0)
