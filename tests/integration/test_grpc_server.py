"""The server every service uses, met through real channels."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from baton_core.errors import BatonError, ErrorCode, InvalidConfigError, InvalidRequestError, RequestError
from baton_proto.v1 import baton_pb2, baton_pb2_grpc
from baton_router.grpc.server import GrpcServer
from baton_service.grpc_options import MAX_GRPC_BYTES, SERVER_KEEPALIVE, Keepalive, client_options
from baton_service.keys import Keys
from baton_service.router_access import RouterAccess
from tests.integration.tcp_proxy import Proxy

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


class Waiting(baton_pb2_grpc.BatonServicer):
    """Sends one event, and another when told to; notes when its call is cancelled."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.is_cancelled = asyncio.Event()

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        yield baton_pb2.GenerateEvent()
        try:
            await self.go_on.wait()
            yield baton_pb2.GenerateEvent()
        except asyncio.CancelledError:
            self.is_cancelled.set()
            raise


class Counting(baton_pb2_grpc.BatonServicer):
    """Answers with the length of the text, and something that compresses well."""

    async def Tokenize(self, request: Any, context: Any) -> Any:  # noqa: N802
        return baton_pb2.TokenizeResponse(count=len(request.text), token_ids=[1] * 1000)


@asynccontextmanager
async def serving(
    servicer: baton_pb2_grpc.BatonServicer, keepalive: Keepalive = SERVER_KEEPALIVE, keys: Keys | None = None
) -> AsyncIterator[tuple[GrpcServer, int]]:
    server = GrpcServer(keepalive, keys=keys)
    baton_pb2_grpc.add_BatonServicer_to_server(servicer, server.server)
    port = server.bind("127.0.0.1:0", flag="--listen")
    await server.start(reflects=("baton.v1.Baton",))
    try:
        yield server, port
    finally:
        await server.stop(0.5)


@asynccontextmanager
async def connected(error: Exception | None = None) -> AsyncIterator[tuple[GrpcServer, grpc.aio.Channel]]:
    async with (
        serving(Failing(error)) as (server, port),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        yield server, channel


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
async def test_an_error_ends_the_call_with_its_status(
    status_of: Callable[[grpc.aio.Channel], Awaitable[tuple[str, str]]],
    error: Exception | None,
    status: tuple[str, str],
) -> None:
    async with connected(error) as (_, channel):
        assert await status_of(channel) == status


@pytest.mark.parametrize("status_of", [unary_status, stream_status])
async def test_an_unforeseen_error_is_logged_and_reveals_nothing(
    status_of: Callable[[grpc.aio.Channel], Awaitable[tuple[str, str]]], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        async with connected(KeyError("secret path")) as (_, channel):
            code, details = await status_of(channel)
            assert code == "INTERNAL"
            assert "secret" not in details
    assert "secret path" in caplog.text


@pytest.mark.parametrize("status_of", [unary_status, stream_status])
@pytest.mark.parametrize("letter", ["a", "\u4e2d", "\U0001f600", "\ud800"])
async def test_a_long_message_is_cut_to_what_clients_take(
    status_of: Callable[[grpc.aio.Channel], Awaitable[tuple[str, str]]], letter: str
) -> None:
    async with connected(BatonError("the engine failed: " + letter * 20_000)) as (_, channel):
        code, details = await status_of(channel)
        assert code == "INTERNAL"
        assert details.startswith("the engine failed: ")
        assert details.endswith("...")
        assert 990 < len(details.encode()) <= 1000


@pytest.mark.parametrize("service", ["", "readiness", "baton.v1.Baton"])
async def test_health_is_not_serving_until_told(service: str) -> None:
    async with connected() as (server, channel):
        health, ask = health_pb2_grpc.HealthStub(channel), health_pb2.HealthCheckRequest(service=service)
        assert (await health.Check(ask)).status == health_pb2.HealthCheckResponse.NOT_SERVING
        await server.set_serving(True)
        assert (await health.Check(ask)).status == health_pb2.HealthCheckResponse.SERVING
        await server.set_serving(False)
        assert (await health.Check(ask)).status == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_the_retries_of_a_client_wait_as_long_as_it_is_told() -> None:
    policy = {
        "maxAttempts": 2,
        "initialBackoff": "0.01s",
        "maxBackoff": "0.01s",
        "backoffMultiplier": 1,
        "retryableStatusCodes": ["RESOURCE_EXHAUSTED"],
    }
    config = json.dumps({"methodConfig": [{"name": [{}], "retryPolicy": policy}]})
    error = RequestError(ErrorCode.OVERLOADED, "queue is full", 1.0)
    options = [("grpc.service_config", config)]
    async with (
        serving(Failing(error)) as (_, port),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}", options) as channel,
    ):
        began_s = time.monotonic()
        assert await unary_status(channel) == ("RESOURCE_EXHAUSTED", "queue is full")
        assert 0.9 < time.monotonic() - began_s < 5.0


async def test_a_port_in_use_is_refused_by_flag_and_address() -> None:
    first, second = GrpcServer(), GrpcServer()
    address = f"127.0.0.1:{first.bind('127.0.0.1:0', flag='--listen')}"
    with pytest.raises(InvalidConfigError, match=f"--listen is '{address}'.*port that is not in use"):
        second.bind(address, flag="--listen")
    await first.stop(0)
    await second.stop(0)


@pytest.mark.parametrize("address", ["", "nowhere", "127.0.0.1:99999", "192.0.2.1:0"])
async def test_an_address_that_cannot_be_bound_is_refused(address: str) -> None:
    server = GrpcServer()
    with pytest.raises(InvalidConfigError, match=r"--listen is '.*allowed: host:port"):
        server.bind(address, flag="--listen")
    await server.stop(0)


@pytest.mark.parametrize("method", ["Generate", "Tokenize"])
@pytest.mark.parametrize("garbage", [b"\xff" * 9, b"\x0a\xff\xff\xff\xff\x0f", b"\x12\x03\xed\xa0\x80"])
async def test_what_is_no_message_is_the_clients_error(method: str, garbage: bytes) -> None:
    async with serving(Counting()) as (_, port), grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        path = f"/baton.v1.Baton/{method}"
        call = channel.unary_stream(path) if method == "Generate" else channel.unary_unary(path)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await (call(garbage).read() if method == "Generate" else call(garbage))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        expected = f"request is '{len(garbage)} bytes'; allowed: a protobuf message of the method's request"
        assert caught.value.details().startswith(expected)


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_the_server_describes_its_services(version: str) -> None:
    package = f"grpc.reflection.{version}"
    asked = (
        {"list_services": ""},
        {"file_containing_symbol": "baton.v1.Baton"},
        {"file_containing_symbol": "baton.v1.Baton.Generate"},
        {"file_containing_symbol": f"{package}.ServerReflection"},
        {"file_containing_symbol": "no.such.Service"},
    )
    async with connected() as (_, channel):
        call = channel.stream_stream(f"/{package}.ServerReflection/ServerReflectionInfo")
        requests = [reflection_pb2.ServerReflectionRequest(**one).SerializeToString() for one in asked]
        replies = [
            reflection_pb2.ServerReflectionResponse.FromString(reply) async for reply in call(iter(requests))
        ]
    listed, *described, itself, unknown = replies
    names = {service.name for service in listed.list_services_response.service}
    assert {"baton.v1.Baton", "grpc.health.v1.Health", f"{package}.ServerReflection"} <= names
    for reply in described:
        (file,) = reply.file_descriptor_response.file_descriptor_proto
        assert FileDescriptorProto.FromString(file).service[0].name == "Baton"
    (file,) = itself.file_descriptor_response.file_descriptor_proto
    assert FileDescriptorProto.FromString(file).package == package
    assert unknown.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


async def test_a_compressed_request_is_refused_before_it_is_unpacked() -> None:
    async with serving(Counting()) as (_, port):
        gzip = grpc.Compression.Gzip
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", compression=gzip) as channel:
            stub = baton_pb2_grpc.BatonStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Tokenize(baton_pb2.TokenizeRequest(text="a" * (MAX_GRPC_BYTES - 100)))
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
            assert "gzip" in caught.value.details()


async def test_answers_go_out_uncompressed() -> None:
    received = bytearray()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)

        async def copy(source: asyncio.StreamReader, to: asyncio.StreamWriter, *, notes: bool) -> None:
            while data := await source.read(65536):
                if notes:
                    received.extend(data)
                to.write(data)
            to.close()

        await asyncio.gather(copy(reader, back, notes=False), copy(there, writer, notes=True))

    async with serving(Counting()) as (_, port):
        tap = await asyncio.start_server(listen, "127.0.0.1", 0)
        address = f"127.0.0.1:{tap.sockets[0].getsockname()[1]}"
        async with grpc.aio.insecure_channel(address) as channel:
            await baton_pb2_grpc.BatonStub(channel).Tokenize(baton_pb2.TokenizeRequest(text="a"))
        tap.close()
        await tap.wait_closed()
        assert bytes([1] * 1000) in received


async def test_a_dead_connection_is_noticed_at_both_ends() -> None:
    soon = Keepalive(time_s=0.2, timeout_s=0.2)
    servicer = Waiting()
    async with serving(servicer, soon) as (_, port), asyncio.timeout(10):
        proxy = Proxy(port)
        async with (
            proxy as proxy_port,
            grpc.aio.insecure_channel(f"127.0.0.1:{proxy_port}", client_options(soon)) as channel,
        ):
            call = baton_pb2_grpc.BatonStub(channel).Generate(baton_pb2.GenerateRequest())
            await call.read()
            proxy.freeze()
            await servicer.is_cancelled.wait()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_proxy_of_the_environment_is_passed_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    async with serving(Counting()) as (_, port), asyncio.timeout(10):
        address = f"127.0.0.1:{port}"
        async with RouterAccess().open_async_channel(address) as channel:
            await baton_pb2_grpc.BatonStub(channel).Tokenize(baton_pb2.TokenizeRequest(text="a"))
        with RouterAccess().open_channel(address) as channel:
            ask = baton_pb2_grpc.BatonStub(channel).Tokenize
            await asyncio.to_thread(ask, baton_pb2.TokenizeRequest(text="a"))


async def test_a_client_that_waits_long_is_not_taken_for_dead() -> None:
    servicer, often = Waiting(), Keepalive(time_s=0.1, timeout_s=5.0)
    async with (
        serving(servicer, often) as (_, port),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}", client_options()) as channel,
    ):
        call = baton_pb2_grpc.BatonStub(channel).Generate(baton_pb2.GenerateRequest())
        await call.read()
        await asyncio.sleep(1.0)
        servicer.go_on.set()
        assert await call.read() == baton_pb2.GenerateEvent()
        assert await call.read() is grpc.aio.EOF
