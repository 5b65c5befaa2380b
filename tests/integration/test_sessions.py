"""Sessions between a real server and real clients on the loopback, with a proxy that cuts or freezes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import grpc
import pytest

from baton_core.errors import IncompatibleWorkerError
from baton_core.model.model_identity import ModelIdentity
from baton_core.sessions.router_messages import (
    Cancel,
    SequenceOutput,
    TokenBatch,
)
from baton_core.sessions.session import DEFAULT_TIMINGS, SessionTimings
from baton_core.sessions.worker_info import Role, WorkerInfo, WorkerLoad
from baton_proto.v1 import session_pb2 as pb
from baton_proto.v1.session_pb2_grpc import SessionsStub, add_SessionsServicer_to_server
from baton_router.grpc.server import GrpcServer
from baton_router.process.session_server import SessionServer, WorkerCallbacks
from baton_service.wire.messages import encode_hello
from baton_worker.router_links import RouterLinks
from baton_worker.session_client import RouterCallbacks, SessionClient
from tests.integration.router_cluster import error_of
from tests.integration.tcp_proxy import Proxy

PATIENT = SessionTimings(dead_after_s=20.0, resume_within_s=20.0)
"""Timings of sessions that last however slow the machine is."""
BRISK = SessionTimings(heartbeat_s=0.1, resume_within_s=0.4)


def make_info(epoch: int = 1, *, block_size: int = 32) -> WorkerInfo:
    identity = ModelIdentity(
        weights="abc", dtype="bfloat16", kv_layout="LKHTD", block_size=block_size, transport="tcp"
    )
    return WorkerInfo(
        worker_id="w1",
        epoch=epoch,
        role=Role.MIXED,
        identity=identity,
        max_model_len=1024,
        vocab_size=100,
        num_blocks=64,
        max_num_seqs=8,
        peer_address="tcp://127.0.0.1:1",
        kv_description=b"pool",
    )


def command(number: int) -> Cancel:
    return Cancel(request_id=f"r{number}")


def tokens(token_id: int) -> TokenBatch:
    return TokenBatch(outputs=(SequenceOutput(request_id="r", index=0, token_ids=(token_id,)),))


async def until(condition: Callable[[], bool], within_s: float = 30.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 (what is waited for raises no event)
            await asyncio.sleep(0.005)


@dataclass
class Router:
    """What a router saw, in order."""

    timings: SessionTimings = DEFAULT_TIMINGS
    epoch: int = 1000
    seen: list[object] = field(default_factory=list)
    loads: list[WorkerLoad] = field(default_factory=list)
    identity: ModelIdentity = field(default_factory=lambda: make_info().identity)
    takes_any: bool = True
    """False refuses all workers for good."""
    num_checks: int = 0
    server: SessionServer = field(init=False)

    def __post_init__(self) -> None:
        callbacks = WorkerCallbacks(
            check=self.check,
            on_joined=self.on_joined,
            on_message=lambda worker_id, message: self.seen.append(message),
            on_load=lambda worker_id, load: self.loads.append(load),
            on_left=lambda worker_id, reason: self.seen.append(("left", reason)),
        )
        self.server = SessionServer("r1", self.epoch, callbacks, self.timings)

    def check(self, info: WorkerInfo) -> None:
        self.num_checks += 1
        if not self.takes_any:
            raise IncompatibleWorkerError(
                "model is 'a'; allowed: 'b', that of this router", is_permanent=True
            )
        self.identity.require_compatible(info.identity)

    def on_joined(self, info: WorkerInfo) -> None:
        self.identity.require_compatible(info.identity)
        self.seen.append(("joined", info))

    def token_ids(self) -> list[int]:
        batches = [message for message in self.seen if isinstance(message, TokenBatch)]
        return [t for batch in batches for output in batch.outputs for t in output.token_ids]


async def start(router: Router, address: str = "127.0.0.1:0") -> tuple[GrpcServer, int]:
    server = GrpcServer()
    add_SessionsServicer_to_server(router.server, server.server)
    port = server.bind(address, flag="--listen")
    await server.start()
    return server, port


@asynccontextmanager
async def serving(router: Router, address: str = "127.0.0.1:0") -> AsyncIterator[int]:
    server, port = await start(router, address)
    try:
        yield port
    finally:
        router.server.close()
        await server.stop(1.0)


@dataclass
class Worker:
    """What a worker saw, in order."""

    timings: SessionTimings = DEFAULT_TIMINGS
    seen: list[object] = field(default_factory=list)
    router_ids: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    def callbacks(self) -> RouterCallbacks:
        return RouterCallbacks(
            on_joined=lambda router_id, has_locality: self.router_ids.append(router_id),
            on_message=lambda router_id, message: self.seen.append(message),
            on_lost=self.lost.append,
        )


@asynccontextmanager
async def dialing(worker: Worker, port: int, info: WorkerInfo | None = None) -> AsyncIterator[SessionClient]:
    load = WorkerLoad(num_running=3, step_age_s=0.25)
    client = SessionClient(
        f"127.0.0.1:{port}", info or make_info(), lambda: load, worker.callbacks(), worker.timings
    )
    running = asyncio.create_task(client.run())
    try:
        yield client
    finally:
        await client.close()
        await running


def test_messages_pass_both_ways_in_order_and_heartbeats_carry_the_load() -> None:
    async def scenario() -> None:
        router, worker = Router(PATIENT), Worker(PATIENT)
        async with serving(router) as port, dialing(worker, port) as client:
            await until(lambda: bool(worker.router_ids))
            assert router.seen == [("joined", make_info())]
            assert worker.router_ids == ["r1:1000"]
            for number in range(200):
                router.server.send("w1", command(number))
                client.send("r1:1000", tokens(number))
            await until(lambda: len(worker.seen) == 200 and len(router.token_ids()) == 200)
            assert worker.seen == [command(number) for number in range(200)]
            assert router.token_ids() == list(range(200))
            await until(lambda: len(router.loads) >= 2)
            assert router.loads[0] == WorkerLoad(num_running=3, step_age_s=0.25)
        assert router.seen[-1] == ("left", "worker w1 ended the session")
        assert worker.lost == ["r1:1000"]

    asyncio.run(scenario())


def test_a_worker_that_says_farewell_is_nothing_to_warn_of(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        router, worker = Router(PATIENT), Worker(PATIENT)
        async with serving(router) as port:
            async with dialing(worker, port):
                await until(lambda: bool(worker.router_ids))
            await until(lambda: len(router.seen) == 2)

    with caplog.at_level("INFO"):
        asyncio.run(scenario())
    said = [record for record in caplog.records if "worker w1 left" in record.getMessage()]
    assert [record.levelname for record in said] == ["INFO"]


def test_a_cut_connection_is_resumed_without_losing_or_repeating_a_message() -> None:
    async def scenario() -> None:
        router, worker = Router(PATIENT), Worker(PATIENT)
        async with serving(router) as port:
            proxy = Proxy(port)
            async with proxy as proxy_port, dialing(worker, proxy_port) as client:
                await until(lambda: bool(worker.router_ids))
                for number in range(400):
                    router.server.send("w1", command(number))
                    client.send("r1:1000", tokens(number))
                    if number in (100, 200, 300):
                        await asyncio.sleep(0.01)
                        proxy.cut()
                    if number % 50 == 0:
                        await asyncio.sleep(0.05)
                await until(lambda: len(worker.seen) == 400 and len(router.token_ids()) == 400)
                assert worker.seen == [command(number) for number in range(400)]
                assert router.token_ids() == list(range(400))
                assert proxy.num_connections > 1
                assert worker.router_ids == ["r1:1000"]
                assert worker.lost == []
                assert [event for event in router.seen if isinstance(event, tuple)] == [
                    ("joined", make_info())
                ]

    asyncio.run(scenario())


def test_a_resumed_stream_replaces_one_that_the_router_still_believes_in() -> None:
    async def scenario() -> None:
        router, worker = Router(PATIENT), Worker(PATIENT)
        async with serving(router) as port:
            proxy = Proxy(port)
            async with proxy as proxy_port, dialing(worker, proxy_port) as client:
                await until(lambda: bool(worker.router_ids))
                proxy.cut_unnoticed()
                for number in range(20):
                    router.server.send("w1", command(number))
                    client.send("r1:1000", tokens(number))
                    await asyncio.sleep(0.02)
                await until(lambda: len(worker.seen) == 20 and len(router.token_ids()) == 20)
                assert worker.seen == [command(number) for number in range(20)]
                assert router.token_ids() == list(range(20))
                assert worker.router_ids == ["r1:1000"]

    asyncio.run(scenario())


def test_a_silent_peer_is_lost_on_both_sides_within_two_seconds() -> None:
    async def scenario() -> None:
        router, worker = Router(), Worker()
        async with serving(router) as port:
            proxy = Proxy(port)
            async with proxy as proxy_port, dialing(worker, proxy_port):
                await until(lambda: bool(router.loads))
                proxy.freeze()
                await until(lambda: len(router.seen) > 1 and bool(worker.lost))
                assert router.seen[1] == ("left", "no frame from worker w1 for 1.5 s")
                proxy.cut()
                await until(lambda: len(worker.router_ids) == 2)
                assert worker.router_ids == ["r1:1000", "r1:1001"]
                assert worker.lost == ["r1:1000"]

    asyncio.run(scenario())


def test_a_connection_that_stays_cut_ends_the_session_on_both_sides() -> None:
    async def scenario() -> None:
        router, worker = Router(BRISK), Worker(BRISK)
        async with serving(router) as port:
            proxy = Proxy(port)
            async with proxy as proxy_port, dialing(worker, proxy_port) as client:
                await until(lambda: bool(worker.router_ids))
                proxy.is_refusing = True
                proxy.cut()
                client.send("r1:1000", tokens(1))
                await until(lambda: bool(worker.lost) and len(router.seen) == 2)
                assert router.seen[1] == (
                    "left",
                    "worker w1 did not resume its broken stream within 0.4 s",
                )
                proxy.is_refusing = False
                await until(lambda: len(worker.router_ids) == 2)
                client.send("r1:1000", tokens(2))
                client.send("r1:1001", tokens(3))
                await until(lambda: bool(router.token_ids()))
                assert router.token_ids() == [3]

    asyncio.run(scenario())


def test_a_restarted_worker_leaves_and_joins_at_once() -> None:
    async def scenario() -> None:
        router, first, second = Router(PATIENT), Worker(PATIENT), Worker(PATIENT)
        async with serving(router) as port:
            proxy = Proxy(port)
            async with proxy as proxy_port, dialing(first, proxy_port):
                await until(lambda: bool(first.router_ids))
                proxy.freeze()
                async with dialing(second, port, make_info(epoch=2)):
                    await until(lambda: bool(second.router_ids))
                    restarted = [
                        ("joined", make_info()),
                        ("left", "worker w1 restarted"),
                        ("joined", make_info(epoch=2)),
                    ]
                    assert router.seen == restarted
                proxy.cut()

    asyncio.run(scenario())


def test_an_older_worker_cannot_take_the_name_of_a_newer_one() -> None:
    async def scenario() -> None:
        router, newer, older = Router(), Worker(), Worker()
        async with serving(router) as port, dialing(newer, port, make_info(epoch=2)):
            await until(lambda: bool(newer.router_ids))
            async with dialing(older, port, make_info(epoch=1)) as client:
                await until(lambda: client.refusal is not None)
                assert client.refusal is not None
                assert "worker_id is 'w1'; allowed: a name that no" in client.refusal.message
                assert not client.refusal.is_permanent
                assert router.seen == [("joined", make_info(epoch=2))]
                assert newer.lost == []

    asyncio.run(scenario())


def test_a_refused_worker_does_not_end_the_session_of_an_earlier_one_of_its_name() -> None:
    async def scenario() -> None:
        router, healthy, stranger = Router(), Worker(), Worker()
        async with serving(router) as port, dialing(healthy, port):
            await until(lambda: bool(healthy.router_ids))
            async with dialing(stranger, port, make_info(epoch=2, block_size=16)) as client:
                await until(lambda: client.refusal is not None)
                assert router.seen == [("joined", make_info())]
                assert (healthy.lost, stranger.router_ids) == ([], [])

    asyncio.run(scenario())


@pytest.mark.parametrize("says_farewell", [True, False])
def test_only_a_router_that_leaves_without_farewell_is_warned_of(
    says_farewell: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        router, worker = Router(BRISK), Worker(BRISK)
        server, port = await start(router)
        async with dialing(worker, port):
            await until(lambda: bool(worker.router_ids))
            if says_farewell:
                router.server.close()
            await server.stop(0.2)
            await until(lambda: "cannot be reached, trying on" in caplog.text and bool(worker.lost))

    with caplog.at_level("DEBUG"):
        asyncio.run(scenario())
    said = [record.levelname for record in caplog.records if "cannot be reached" in record.getMessage()]
    assert said[0] == ("DEBUG" if says_farewell else "WARNING")


def test_a_restarted_router_is_a_new_router_to_the_worker() -> None:
    async def scenario() -> None:
        worker = Worker()
        server, port = await start(Router())
        async with dialing(worker, port):
            await until(lambda: bool(worker.router_ids))
            await server.stop(0)
            async with serving(Router(epoch=2000), f"127.0.0.1:{port}"):
                await until(lambda: len(worker.router_ids) == 2)
                assert worker.router_ids == ["r1:1000", "r1:2000"]
                assert worker.lost == ["r1:1000"]

    asyncio.run(scenario())


def test_an_incompatible_worker_is_told_why_and_joins_once_it_fits(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
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

    with caplog.at_level("INFO"):
        asyncio.run(scenario())
    assert len([record for record in caplog.records if "block_size is 16" in record.getMessage()]) == 2


def test_a_router_says_whether_it_refuses_for_good() -> None:
    async def scenario() -> None:
        router, worker = Router(takes_any=False), Worker()
        async with serving(router) as port, dialing(worker, port) as client:
            await until(lambda: client.refusal is not None)
            assert client.refusal is not None
            assert client.refusal.is_permanent

    asyncio.run(scenario())


def links_to(worker: Worker, ports: list[int], *, finds_more: bool = False) -> RouterLinks:
    def dial(address: str) -> SessionClient:
        callbacks = replace(worker.callbacks(), on_refusal=lambda: links.on_refusal())
        return SessionClient(address, make_info(), WorkerLoad, callbacks, worker.timings)

    links = RouterLinks([f"127.0.0.1:{port}" for port in ports], dial, finds_more=finds_more)
    return links


def test_a_router_that_refuses_for_good_ends_no_worker_that_another_router_uses() -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


@pytest.mark.parametrize("finds_more", [False, True])
def test_a_worker_ends_when_every_router_there_may_be_refuses_it_for_good(finds_more: bool) -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_a_worker_does_not_end_while_one_of_its_routers_is_out_of_reach() -> None:
    async def scenario() -> None:
        router, worker = Router(takes_any=False), Worker()
        async with Proxy(1) as unused_port:
            pass
        async with serving(router) as port:
            links = links_to(worker, [port, unused_port])
            running = asyncio.create_task(links.run())
            await until(lambda: router.num_checks > 2)
            assert not running.done()
            running.cancel()
            await links.close()

    asyncio.run(scenario())


def test_a_message_that_means_nothing_ends_the_session() -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_a_stream_that_does_not_begin_with_a_hello_is_rejected() -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_a_hello_that_means_nothing_is_refused_for_good() -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_a_worker_that_is_sent_too_much_leaves_once_and_not_from_inside_send() -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_a_client_that_reaches_no_router_closes_at_once() -> None:
    async def scenario() -> None:
        worker = Worker()
        async with Proxy(1) as unused_port:
            pass
        async with dialing(worker, unused_port), asyncio.timeout(10.0):
            await asyncio.sleep(0.05)
        assert worker.router_ids == []

    asyncio.run(scenario())
