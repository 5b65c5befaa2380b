"""A router from start to stop: its port, its health, its workers, its signals."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from contextlib import AsyncExitStack
from dataclasses import replace

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from baton_core.errors import IncompatibleWorkerError, InvalidConfigError
from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import BatonStub
from baton_router.main import RouterServer
from baton_router.process.router_settings import RouterSettings
from tests.integration.router_cluster import ANSWER, MODEL, ask, error_of, pair, serving
from tests.integration.scripted_worker import ScriptedWorker


async def test_health_and_model_info_follow_the_workers() -> None:
    prefill, decode = pair(answers=[ANSWER])
    async with serving() as server, AsyncExitStack() as stack:
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}"))
        stub, health = BatonStub(channel), health_pb2_grpc.HealthStub(channel)
        statuses = health.Watch(health_pb2.HealthCheckRequest())
        response = health_pb2.HealthCheckResponse
        assert (await statuses.read()).status == response.NOT_SERVING
        await stack.enter_async_context(prefill.joined(server.grpc_port))
        info = await stub.GetModelInfo(pb.GetModelInfoRequest())
        assert (info.model, info.vocab_size, info.is_ready) == ("tiny", 4096, False)
        await stack.enter_async_context(decode.joined(server.grpc_port))
        assert (await statuses.read()).status == response.SERVING
        info = await stub.GetModelInfo(pb.GetModelInfoRequest())
        assert (info.max_model_len, info.is_ready) == (4096, True)
        assert [(worker.worker_id, worker.role, worker.num_blocks) for worker in info.workers] == [
            ("p1", "prefill", 1024),
            ("d1", "decode", 1024),
        ]
        await prefill.client.close()
        assert (await statuses.read()).status == response.NOT_SERVING
        statuses.cancel()


async def test_a_client_without_the_proto_file_learns_what_the_router_serves() -> None:
    async with serving() as server, grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        (reply,) = [reply async for reply in stub.ServerReflectionInfo(iter([asked]))]
        assert [service.name for service in reply.list_services_response.service] == [
            "baton.v1.Baton",
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "grpc.reflection.v1alpha.ServerReflection",
        ]


async def test_a_worker_of_another_model_is_refused_with_the_reason() -> None:
    async with serving() as server, ScriptedWorker("w1").joined(server.grpc_port):
        stranger = ScriptedWorker("w2")
        stranger.info = replace(stranger.info, identity=replace(stranger.info.identity, weights="other"))
        with pytest.raises(IncompatibleWorkerError, match="weights is 'other'; allowed: 'tiny'"):
            async with stranger.joined(server.grpc_port):
                pass
        assert not stranger.has_joined


async def test_a_stopping_router_lets_running_requests_end_but_not_forever() -> None:
    worker = ScriptedWorker("w1", answers=[ANSWER], num_steps=3)
    settings = RouterSettings(model=str(MODEL), port=0, grpc_port=0, shutdown_timeout_s=3.0)
    server = RouterServer(settings)
    await server.start()
    async with (
        worker.joined(server.grpc_port),
        grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel,
    ):
        stub = BatonStub(channel)
        calls = [stub.Generate(ask(request_id=name)) for name in ("r1", "r2")]
        for call in calls:
            await call.read()
        stopping = asyncio.create_task(server.stop())
        await asyncio.sleep(0.1)
        refused = await error_of(stub.Generate(ask(request_id="r3")))
        assert refused[0] == "UNAVAILABLE"
        assert "Connection refused" in refused[1], "the port is for others"
        worker.go_on("r1")
        while (event := await calls[0].read()).WhichOneof("event") != "finished":
            assert event.tokens.index == 0
        assert event.finished.usage.completion_tokens == len(ANSWER)
        assert await error_of(calls[1]) == ("UNAVAILABLE", "the router shuts down")
        await stopping


async def test_a_stopping_router_lets_go_of_connections_that_ask_nothing() -> None:
    worker = ScriptedWorker("w1", answers=[ANSWER], num_steps=3)
    settings = RouterSettings(model=str(MODEL), port=0, grpc_port=0, shutdown_timeout_s=5.0)
    server = RouterServer(settings)
    await server.start()
    address = f"127.0.0.1:{server.grpc_port}"
    async with worker.joined(server.grpc_port), grpc.aio.insecure_channel(address) as channel:
        idle, idle_writer = await asyncio.open_connection("127.0.0.1", server.http_port)
        idle_writer.write(b"GET /live HTTP/1.1\r\nhost: a\r\n\r\n")
        assert b"connection: close" not in await idle.readuntil(b"\r\n\r\n")
        silent, silent_writer = await asyncio.open_connection("127.0.0.1", server.http_port)
        call = BatonStub(channel).Generate(ask(request_id="r1"))
        await call.read()
        stopping = asyncio.create_task(server.stop())
        assert await asyncio.wait_for(idle.read(), 2) == b""
        silent_writer.write(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n")
        answer = await asyncio.wait_for(silent.read(), 2)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nconnection: close\r\n" in answer
        for _ in range(20):
            if channel.get_state() is grpc.ChannelConnectivity.IDLE:
                break
            await asyncio.sleep(0.05)
        assert channel.get_state() is grpc.ChannelConnectivity.IDLE, "the next call goes elsewhere"
        worker.go_on("r1")
        while (event := await call.read()).WhichOneof("event") != "finished":
            pass
        assert event.finished.usage.completion_tokens == len(ANSWER)
        await stopping
        for writer in (idle_writer, silent_writer):
            writer.close()


async def test_a_port_in_use_is_refused_before_the_model_is_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = RouterSettings(model="/nowhere", port=taken.getsockname()[1])
        address = f"127.0.0.1:{settings.port}"
        with pytest.raises(
            InvalidConfigError, match=f"address of --host and --port is '{address}'.*; allowed: host:port"
        ):
            await RouterServer(settings).start()


def test_a_refused_model_ends_the_process_with_two() -> None:
    process = start_process("/nowhere")
    assert process.wait(20) == 2
    assert process.stderr is not None
    with process.stderr as log:
        assert "model is '/nowhere'; allowed: a folder that exists" in log.read()


def test_a_process_serves_until_it_is_told_to_stop() -> None:
    process = start_process(str(MODEL))
    assert process.stderr is not None
    with process.stderr as log:
        assert "listening" in log.readline()
        process.send_signal(signal.SIGTERM)
        assert "stopping" in log.read()
    assert process.wait(10) == 0


def start_process(model: str) -> subprocess.Popen[str]:
    program = (
        "import sys; from baton_router.main import run_router;"
        "from baton_router.process.router_settings import RouterSettings;"
        f"sys.exit(run_router(RouterSettings(model={model!r}, port=0, grpc_port=0)))"
    )
    return subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
