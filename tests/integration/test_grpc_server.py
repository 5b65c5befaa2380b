"""The server every service uses, met through real channels."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton_core.errors import (
    BatonError,
    ErrorCode,
    InvalidConfigError,
    InvalidRequestError,
    RequestError,
)
from baton_proto.v1 import baton_pb2, baton_pb2_grpc
from baton_service.grpc_server import GrpcServer

INVALID = InvalidRequestError("n", 0, "1 to 64")


class Failing(baton_pb2_grpc.BatonServicer):
    """Raises `error` from every method; the stream after one event."""

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    async def GetModelInfo(self, request: Any, context: Any) -> Any:  # noqa: N802
        if self._error is None:
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, "the service's own abort")
        raise self._error

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        yield baton_pb2.GenerateEvent()
        if self._error is None:
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, "the service's own abort")
        raise self._error


@asynccontextmanager
async def connected(error: Exception | None = None) -> AsyncIterator[tuple[GrpcServer, grpc.aio.Channel]]:
    server = GrpcServer()
    baton_pb2_grpc.add_BatonServicer_to_server(Failing(error), server.server)
    port = server.bind("127.0.0.1:0", flag="--listen")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield server, channel
    finally:
        await server.stop(0.5)


async def unary_status(channel: grpc.aio.Channel) -> tuple[str, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await baton_pb2_grpc.BatonStub(channel).GetModelInfo(baton_pb2.GetModelInfoRequest())
    return caught.value.code().name, caught.value.details() or ""


async def stream_status(channel: grpc.aio.Channel) -> tuple[str, str]:
    events = baton_pb2_grpc.BatonStub(channel).Generate(baton_pb2.GenerateRequest())
    assert await events.read() == baton_pb2.GenerateEvent()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await events.read()
    return caught.value.code().name, caught.value.details() or ""


@pytest.mark.parametrize("status_of", [unary_status, stream_status])
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (INVALID, ("INVALID_ARGUMENT", "n is 0; allowed: 1 to 64")),
        (RequestError(ErrorCode.OVERLOADED, "queue is full"), ("RESOURCE_EXHAUSTED", "queue is full")),
        (BatonError("fault"), ("INTERNAL", "fault")),
        (None, ("ALREADY_EXISTS", "the service's own abort")),
    ],
)
def test_an_error_ends_the_call_with_its_status(
    status_of: Callable[[grpc.aio.Channel], Awaitable[tuple[str, str]]],
    error: Exception | None,
    status: tuple[str, str],
) -> None:
    async def scenario() -> None:
        async with connected(error) as (_, channel):
            assert await status_of(channel) == status

    asyncio.run(scenario())


@pytest.mark.parametrize("status_of", [unary_status, stream_status])
def test_an_unforeseen_error_is_logged_and_reveals_nothing(
    status_of: Callable[[grpc.aio.Channel], Awaitable[tuple[str, str]]], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with connected(KeyError("secret path")) as (_, channel):
            code, details = await status_of(channel)
            assert code == "INTERNAL"
            assert "secret" not in details

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    assert "secret path" in caplog.text


def test_health_is_not_serving_until_told() -> None:
    async def scenario() -> None:
        async with connected() as (server, channel):
            health, ask = health_pb2_grpc.HealthStub(channel), health_pb2.HealthCheckRequest()
            assert (await health.Check(ask)).status == health_pb2.HealthCheckResponse.NOT_SERVING
            await server.set_serving(True)
            assert (await health.Check(ask)).status == health_pb2.HealthCheckResponse.SERVING
            await server.set_serving(False)
            assert (await health.Check(ask)).status == health_pb2.HealthCheckResponse.NOT_SERVING

    asyncio.run(scenario())


def test_a_port_in_use_is_refused_by_flag_and_address() -> None:
    async def scenario() -> None:
        first, second = GrpcServer(), GrpcServer()
        address = f"127.0.0.1:{first.bind('127.0.0.1:0', flag='--listen')}"
        with pytest.raises(InvalidConfigError, match=f"--listen is '{address}'.*port that is not in use"):
            second.bind(address, flag="--listen")
        await first.stop(0)
        await second.stop(0)

    asyncio.run(scenario())


@pytest.mark.parametrize("address", ["", "nowhere", "127.0.0.1:99999", "192.0.2.1:0"])
def test_an_address_that_cannot_be_bound_is_refused(address: str) -> None:
    async def scenario() -> None:
        server = GrpcServer()
        with pytest.raises(InvalidConfigError, match=r"--listen is '.*allowed: host:port"):
            server.bind(address, flag="--listen")
        await server.stop(0)

    asyncio.run(scenario())
