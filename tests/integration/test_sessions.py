"""Sessions between a real server and real clients on the loopback, with a proxy that cuts or freezes them."""

from __future__ import annotations

import asyncio

import pytest

from baton_core.sessions.worker_info import WorkerLoad
from tests.integration.scripted_worker import until
from tests.integration.session_ends import (
    BRISK,
    PATIENT,
    Router,
    Worker,
    command,
    dialing,
    make_info,
    serving,
    start,
    tokens,
)
from tests.integration.tcp_proxy import Proxy


async def test_messages_pass_both_ways_in_order_and_heartbeats_carry_the_load() -> None:
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


async def test_a_worker_that_says_farewell_is_nothing_to_warn_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        router, worker = Router(PATIENT), Worker(PATIENT)
        async with serving(router) as port:
            async with dialing(worker, port):
                await until(lambda: bool(worker.router_ids))
            await until(lambda: len(router.seen) == 2)
    said = [record for record in caplog.records if "worker w1 left" in record.getMessage()]
    assert [record.levelname for record in said] == ["INFO"]


async def test_a_cut_connection_is_resumed_without_losing_or_repeating_a_message() -> None:
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
            assert [event for event in router.seen if isinstance(event, tuple)] == [("joined", make_info())]


async def test_a_resumed_stream_replaces_one_that_the_router_still_believes_in() -> None:
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


async def test_a_silent_peer_is_lost_on_both_sides_within_two_seconds() -> None:
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


async def test_a_connection_that_stays_cut_ends_the_session_on_both_sides() -> None:
    router, worker = Router(BRISK), Worker(BRISK)
    async with serving(router) as port:
        proxy = Proxy(port)
        async with proxy as proxy_port, dialing(worker, proxy_port) as client:
            await until(lambda: bool(worker.router_ids))
            proxy.is_refusing = True
            proxy.cut()
            client.send("r1:1000", tokens(1))
            await until(lambda: bool(worker.lost) and len(router.seen) == 2)
            assert router.seen[1] == ("left", "worker w1 did not resume its broken stream within 0.4 s")
            proxy.is_refusing = False
            await until(lambda: len(worker.router_ids) == 2)
            client.send("r1:1000", tokens(2))
            client.send("r1:1001", tokens(3))
            await until(lambda: bool(router.token_ids()))
            assert router.token_ids() == [3]


async def test_a_restarted_worker_leaves_and_joins_at_once() -> None:
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


async def test_an_older_worker_cannot_take_the_name_of_a_newer_one() -> None:
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


async def test_a_refused_worker_does_not_end_the_session_of_an_earlier_one_of_its_name() -> None:
    router, healthy, stranger = Router(), Worker(), Worker()
    async with serving(router) as port, dialing(healthy, port):
        await until(lambda: bool(healthy.router_ids))
        async with dialing(stranger, port, make_info(epoch=2, block_size=16)) as client:
            await until(lambda: client.refusal is not None)
            assert router.seen == [("joined", make_info())]
            assert (healthy.lost, stranger.router_ids) == ([], [])


@pytest.mark.parametrize("says_farewell", [True, False])
async def test_only_a_router_that_leaves_without_farewell_is_warned_of(
    says_farewell: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("DEBUG"):
        router, worker = Router(BRISK), Worker(BRISK)
        server, port = await start(router)
        async with dialing(worker, port):
            await until(lambda: bool(worker.router_ids))
            if says_farewell:
                router.server.close()
            await server.stop(0.2)
            await until(lambda: "cannot be reached, trying on" in caplog.text and bool(worker.lost))
    said = [record.levelname for record in caplog.records if "cannot be reached" in record.getMessage()]
    assert said[0] == ("DEBUG" if says_farewell else "WARNING")


async def test_a_restarted_router_is_a_new_router_to_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker()
    server, port = await start(Router())
    async with dialing(worker, port):
        await until(lambda: bool(worker.router_ids))
        await server.stop(0)
        async with serving(Router(epoch=2000), f"127.0.0.1:{port}"):
            await until(lambda: len(worker.router_ids) == 2)
            assert worker.router_ids == ["r1:1000", "r1:2000"]
            assert worker.lost == ["r1:1000"]
    assert "began another session: it restarted, or had given this one up" in caplog.text
