"""Sessions that a router refuses, and messages that end one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest

from baton_core.errors import IncompatibleWorkerError
from baton_core.sessions.session import SessionTimings
from baton_core.sessions.worker_info import WorkerLoad
from baton_proto.v1 import session_pb2 as pb
from baton_proto.v1.session_pb2_grpc import SessionsStub
from baton_service.wire.wire_worker import encode_hello
from baton_worker.router_links import RouterLinks
from baton_worker.session_client import SessionClient
from tests.integration.router_cluster import error_of
from tests.integration.scripted_worker import until
from tests.integration.session_ends import Router, Worker, command, dialing, make_info, serving
from tests.integration.tcp_proxy import Proxy


async def test_an_incompatible_worker_is_told_why_and_joins_once_it_fits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("INFO"):
        router, worker, info = Router(), Worker(), make_info(block_size=16)
        async with serving(router) as port, dialing(worker, port, info) as client:
            await until(lambda: client.refusal is not None)
            assert client.refusal is not None
            assert "(incompatible_worker): block_size is 16; allowed: 32" in client.refusal.message
            assert not client.refusal.is_permanent
            assert (router.seen, worker.router_ids) == ([], [])
            await until(lambda: router.num_checks > 3)
            router.identity = info.identity
            await until(lambda: bool(worker.router_ids))
            assert client.refusal is None
            assert router.seen == [("joined", info)]
    assert len([record for record in caplog.records if "block_size is 16" in record.getMessage()]) == 2


async def test_a_router_says_whether_it_refuses_for_good() -> None:
    router, worker = Router(takes_any=False), Worker()
    async with serving(router) as port, dialing(worker, port) as client:
        await until(lambda: client.refusal is not None)
        assert client.refusal is not None
        assert client.refusal.is_permanent


def links_to(worker: Worker, ports: list[int], *, finds_more: bool = False) -> RouterLinks:
    def dial(address: str, names_process: bool) -> SessionClient:
        callbacks = replace(worker.callbacks(), on_refusal=lambda: links.on_refusal())
        return SessionClient(
            address, make_info(), WorkerLoad, callbacks, worker.timings, names_process=names_process
        )

    links = RouterLinks([f"127.0.0.1:{port}" for port in ports], dial, finds_more=finds_more)
    return links


async def test_a_router_that_refuses_for_good_ends_no_worker_that_another_router_uses() -> None:
    mine, other, worker = Router(), Router(takes_any=False), Worker()
    async with serving(mine) as port, serving(other) as other_port:
        links = links_to(worker, [port, other_port])
        running = asyncio.create_task(links.run())
        await until(lambda: bool(worker.router_ids) and bool(links.refusals))
        assert other.seen == []
        other.takes_any = True
        await until(lambda: len(worker.router_ids) == 2)
        assert (links.refusals, worker.lost) == ([], [])
        assert not running.done()
        running.cancel()
        await links.close()


@pytest.mark.parametrize("finds_more", [False, True])
async def test_a_worker_ends_when_every_router_there_may_be_refuses_it_for_good(finds_more: bool) -> None:
    routers, worker = [Router(takes_any=False), Router(takes_any=False)], Worker()
    async with serving(routers[0]) as first, serving(routers[1]) as second:
        links = links_to(worker, [first, second], finds_more=finds_more)
        running = asyncio.create_task(links.run())
        await until(lambda: all(router.num_checks for router in routers) and len(links.refusals) == 2)
        if finds_more:
            await until(lambda: routers[0].num_checks > 2)
            assert not running.done()
            running.cancel()
        else:
            text = rf"no router takes this worker: router 127\.0\.0\.1:{first} refuses .*model is 'a'; "
            with pytest.raises(IncompatibleWorkerError, match=text):
                await running
        await links.close()


async def test_a_worker_does_not_end_while_one_of_its_routers_is_out_of_reach() -> None:
    router, worker = Router(takes_any=False), Worker()
    async with Proxy(1) as unused_port:
        pass
    async with serving(router) as port:
        links = links_to(worker, [port, unused_port])
        running = asyncio.create_task(links.run())
        await until(lambda: router.num_checks > 2 and bool(links.unreachable))
        assert not running.done()
        (text,) = links.unreachable
        assert text.startswith(f"router 127.0.0.1:{unused_port} cannot be reached: ")
        assert len(links.refusals) == 1
        running.cancel()
        await links.close()


async def test_a_message_that_means_nothing_ends_the_session() -> None:
    router = Router()
    async with serving(router) as port, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = SessionsStub(channel).Connect()
        await call.write(pb.WorkerFrame(hello=encode_hello(make_info())))
        await call.write(pb.WorkerFrame(data=pb.WorkerData(number=1)))
        code, details = await error_of(call)
        assert code == "INVALID_ARGUMENT"
        assert details.startswith("message is None; allowed: one of reserved")
        assert router.seen[0] == ("joined", make_info())
        reason = str(router.seen[1])
        assert "worker w1 sent a malformed message: message is None; allowed: one of reserved" in reason


async def test_a_heartbeat_of_messages_that_were_never_sent_ends_the_session_with_what_is_wrong() -> None:
    async with serving(Router()) as port, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = SessionsStub(channel).Connect()
        await call.write(pb.WorkerFrame(hello=encode_hello(make_info())))
        await call.write(pb.WorkerFrame(heartbeat=pb.WorkerHeartbeat(received=7)))
        assert await error_of(call) == ("INVALID_ARGUMENT", "received is 7; allowed: 0 to 0")


async def test_a_stream_that_does_not_begin_with_a_hello_is_rejected() -> None:
    router = Router()
    async with serving(router) as port, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = SessionsStub(channel).Connect()
        await call.write(pb.WorkerFrame(heartbeat=pb.WorkerHeartbeat()))
        rejected = (await call.read()).rejected
        assert (rejected.code, rejected.message) == (
            "invalid_request",
            "frame is 'heartbeat'; allowed: a hello first",
        )
        assert not rejected.is_permanent
        assert await error_of(call) == ("INVALID_ARGUMENT", rejected.message)
        assert router.seen == []


async def test_a_hello_that_means_nothing_is_refused_for_good() -> None:
    router, hello = Router(), encode_hello(make_info())
    hello.role = "reader"
    async with serving(router) as port, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = SessionsStub(channel).Connect()
        await call.write(pb.WorkerFrame(hello=hello))
        rejected = (await call.read()).rejected
        assert rejected.is_permanent
        code, details = await error_of(call)
        assert code == "INVALID_ARGUMENT"
        assert details == "role is 'reader'; allowed: one of prefill, decode, mixed"
        assert router.seen == []


WELCOME = pb.RouterFrame(welcome=pb.Welcome(router_id="r", epoch=5)).SerializeToString()


@asynccontextmanager
async def answering(answers: list[bytes], after_s: float = 0.0) -> AsyncIterator[int]:
    """A port that answers each hello with these bytes and the end of the stream."""

    async def connect(frames: AsyncIterator[bytes], context: Any) -> None:
        await anext(frames)
        await asyncio.sleep(after_s)
        for answer in answers:
            await context.write(answer)

    handler = grpc.stream_stream_rpc_method_handler(connect)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("baton.v1.Sessions", {"Connect": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0.0)


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([b"\xff\xff\xff"], "a frame of an unknown kind"),
        ([b"\x9a\x06\x02hi"], "a frame of an unknown kind"),
        ([pb.RouterFrame(heartbeat=pb.RouterHeartbeat()).SerializeToString()], "heartbeat"),
        ([pb.RouterFrame(welcome=pb.Welcome(router_id="r")).SerializeToString()], "welcome with epoch 0"),
        ([], "the end of the stream"),
    ],
)
async def test_an_answer_without_meaning_to_a_hello_is_a_refusal(
    answers: list[bytes], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker()
    async with answering(answers) as port, dialing(worker, port) as client:
        await until(lambda: client.refusal is not None)
        assert client.refusal is not None
        assert f"answers a hello with {said}; allowed: welcome with an epoch" in client.refusal.message
        assert (client.refusal.is_permanent, worker.router_ids) == (False, [])
        await asyncio.sleep(0.3)
    assert len([record for record in caplog.records if "answers a hello" in record.getMessage()]) == 1


async def test_a_frame_that_is_no_protobuf_ends_the_session(caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker()
    async with answering([WELCOME, b"\xff\xff\xff"]) as port, dialing(worker, port):
        await until(lambda: len(worker.lost) > 1)
    assert "sent a malformed message: frame is None; allowed: data or heartbeat" in caplog.text


class Processes:
    session_port = 1
    session_ports = (1, 2)


@pytest.mark.parametrize("processes", [None, Processes()])
async def test_a_worker_of_another_version_is_told_so_whatever_else_it_sends(
    processes: Processes | None,
) -> None:
    router, hello = Router(), encode_hello(make_info())
    router.server.processes = processes
    hello.identity.protocol_version = 99
    hello.identity.ClearField("description")
    hello.role = "reader"
    async with serving(router) as port, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = SessionsStub(channel).Connect()
        await call.write(pb.WorkerFrame(hello=hello))
        rejected = (await call.read()).rejected
        assert rejected.code == "incompatible_worker"
        assert rejected.message.startswith("protocol_version is 99; allowed: ")
        assert rejected.is_permanent


async def test_a_worker_that_is_sent_too_much_leaves_once_and_not_from_inside_send() -> None:
    router, worker = Router(SessionTimings(max_unacknowledged=8)), Worker()
    async with serving(router) as port, dialing(worker, port):
        await until(lambda: bool(worker.router_ids))
        for number in range(20):
            router.server.send("w1", command(number))
        assert router.seen == [("joined", make_info())]
        await until(lambda: len(worker.router_ids) == 2)
        assert router.seen == [
            ("joined", make_info()),
            ("left", "more than 8 messages wait for worker w1"),
            ("joined", make_info()),
        ]
        assert worker.lost == ["r1:1000"]


async def test_a_router_that_does_not_answer_is_said_to_be_silent(caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker(SessionTimings(heartbeat_s=0.1, dead_after_s=0.3))
    async with answering([], after_s=30.0) as port, dialing(worker, port):
        await until(lambda: "cannot be reached" in caplog.text)
    assert "cannot be reached, trying on: no answer to a hello within 0.3 s" in caplog.text


async def test_a_client_that_reaches_no_router_closes_at_once() -> None:
    worker = Worker()
    async with Proxy(1) as unused_port:
        pass
    async with dialing(worker, unused_port), asyncio.timeout(10.0):
        await asyncio.sleep(0.05)
    assert worker.router_ids == []
