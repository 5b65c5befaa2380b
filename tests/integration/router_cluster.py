"""A router that runs in the test's loop, its scripted workers, and what a client asks and reads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from baton_core.sessions.worker_info import Role
from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import BatonStub
from baton_router.main import RouterServer
from baton_router.process.router_settings import RouterSettings
from baton_router.text.model_folder import read_model_folder
from baton_router.text.tokenization import Tokenizer
from baton_service.router_access import RouterAccess
from tests.integration.scripted_worker import ScriptedWorker

MODEL = Path(__file__).parents[2] / "api" / "baton" / "bundled"
TOKENIZER = Tokenizer(read_model_folder(MODEL))
TEXT = "The quick brown fox jumps over the lazy dog, and 你好 to all. The end is not near."
ANSWER = TOKENIZER.encode(TEXT)
PROMPT = "Tell me a story."
PATIENT_S = 10.0
"""Time limit in a cluster of one process, whose parts hold each other up."""


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[RouterServer]:
    fields: dict[str, Any] = {"model": str(MODEL), "served_model_names": ("tiny",), "port": 0, "grpc_port": 0}
    fields |= {"shutdown_timeout_s": 0.0, "session_timeout_s": PATIENT_S}
    server = RouterServer(RouterSettings(**{**fields, **settings}))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def access_to(server: RouterServer) -> RouterAccess:
    """Return the key that lets a worker in: the first of the router's, if it has any."""
    return RouterAccess(key=next(iter(server._settings.http.api_keys), ""))


@asynccontextmanager
async def cluster(*workers: ScriptedWorker, **settings: Any) -> AsyncIterator[BatonStub]:
    """A router with workers that have joined, and a client of it."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(**settings))
        for worker in workers:
            await stack.enter_async_context(worker.joined(server.grpc_port, access_to(server)))
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}")
        yield BatonStub(await stack.enter_async_context(channel))


def pair(**script: Any) -> tuple[ScriptedWorker, ScriptedWorker]:
    return ScriptedWorker("p1", Role.PREFILL, **script), ScriptedWorker("d1", Role.DECODE, **script)


def ask(prompt: str = PROMPT, *, request_id: str = "r1", **params: Any) -> pb.GenerateRequest:
    params = {"max_tokens": len(ANSWER), "temperature": 0.0, **params}
    return pb.GenerateRequest(text=prompt, request_id=request_id, sampling_params=pb.SamplingParams(**params))


async def tokens_of(call: Any) -> tuple[list[pb.TokensEvent], pb.FinishedEvent]:
    """Read a stream to its end, which is one finished event."""
    events = [event async for event in call]
    assert [event.WhichOneof("event") for event in events] == ["tokens"] * (len(events) - 1) + ["finished"]
    return [event.tokens for event in events[:-1]], events[-1].finished


async def unary_error(call: Awaitable[Any]) -> tuple[str, str]:
    """Await a call that ends with an error."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code().name, caught.value.details() or ""


async def error_of(call: Any) -> tuple[str, str]:
    """Read a stream to its end, which is an error."""
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code().name, error.details() or ""
    raise AssertionError("the call ended without an error")
