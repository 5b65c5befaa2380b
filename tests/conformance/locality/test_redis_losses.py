"""Redis may lose or garble anything: routers go on with what they know, and the truth comes back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis.exceptions import ResponseError

from baton_core.load_reservation import LoadReservation
from baton_service.redis.key_names import Keys
from baton_worker.redis.pending_changes import MAX_PENDING
from tests.conformance.locality.cluster import (
    CachingWorker,
    ListeningRouter,
    LocalityCluster,
    block,
    converged,
    locality_cluster,
)
from tests.integration.scripted_worker import until
from tests.integration.tcp_proxy import Proxy
from tests.redis_server import RedisServer, needs_redis

pytestmark = [needs_redis, pytest.mark.timeout(90)]
NUMBERS = range(16)


@asynccontextmanager
async def redis_cluster(folder: Path) -> AsyncIterator[tuple[LocalityCluster, RedisServer]]:
    async with locality_cluster("redis", folder) as cluster:
        assert cluster.redis is not None
        yield cluster, cluster.redis


async def made(cluster: LocalityCluster) -> tuple[ListeningRouter, CachingWorker]:
    """A router that knows of three blocks of a worker."""
    router, worker = await cluster.router("r1"), await cluster.worker("w1")
    worker.store(1, 2, 3)
    await converged(router, worker, numbers=NUMBERS)
    return router, worker


@pytest.mark.parametrize("loses", ["flush", "crash"])
async def test_a_redis_that_lost_everything_is_filled_again_without_a_change(
    loses: str, tmp_path: Path
) -> None:
    async with redis_cluster(tmp_path) as (cluster, redis):
        router, worker = await made(cluster)
        num_resyncs = router.share.state.num_resyncs
        if loses == "flush":
            await redis.ask("FLUSHALL")
        else:
            redis.kill()
            await until(lambda: not router.share.state.is_up)
            worker.remove(1)
            assert router.holds(worker, NUMBERS) == {1, 2, 3}, "it forgot what it knew"
            await redis.start()
        await until(lambda: router.share.state.num_resyncs > num_resyncs)
        await converged(router, worker, numbers=NUMBERS)
        late = await cluster.router("r2")
        await until(lambda: late.workers == {"w1"})
        await converged(late, worker, numbers=NUMBERS)


@pytest.mark.parametrize(
    "damage", [("SREM", "test:blocks:w1", block(2)), ("HSET", "test:worker:w1", "number", 0)]
)
async def test_what_redis_has_wrong_is_replaced(
    damage: tuple[str | bytes | int, ...], tmp_path: Path
) -> None:
    async with redis_cluster(tmp_path) as (cluster, redis):
        _, worker = await made(cluster)
        num_republished = worker.share.state.num_republished
        await redis.ask(*damage)
        await until(lambda: worker.share.state.num_republished > num_republished)
        late = await cluster.router("r2")
        await converged(late, worker, numbers=NUMBERS)
        assert late.holds(worker, NUMBERS) == {1, 2, 3}


async def test_more_changes_than_one_write_takes_become_a_snapshot(tmp_path: Path) -> None:
    async with redis_cluster(tmp_path) as (cluster, _):
        router, worker = await made(cluster)
        num_republished = worker.share.state.num_republished
        worker.store(*range(10, 12 + MAX_PENDING))
        await until(lambda: worker.share.state.num_republished > num_republished)
        await converged(router, worker, numbers=[1, 10, 11 + MAX_PENDING])


async def test_an_entry_that_cannot_be_read_costs_a_resync_and_nothing_else(tmp_path: Path) -> None:
    async with redis_cluster(tmp_path) as (cluster, redis):
        router, worker = await made(cluster)
        await redis.ask("XADD", "test:changes", "*", "header", "nonsense")
        worker.store(4)
        await converged(router, worker, numbers=NUMBERS)


@pytest.mark.parametrize("junk", [b"", b"\x93junk", b"j"])
async def test_a_router_that_cannot_be_read_hides_no_other_and_is_forgotten(
    junk: bytes, tmp_path: Path
) -> None:
    async with redis_cluster(tmp_path) as (cluster, redis):
        router, worker = await made(cluster)
        await redis.ask("HSET", "test:router:a", "record", junk, "load", junk)
        await redis.ask("SET", "test:router:b", junk)
        await redis.ask("SADD", "test:routers", "a", "b", b"\xff")
        late = await cluster.worker("w2")
        await converged(router, worker, late, numbers=NUMBERS)
        await until(lambda: router.share.is_first)
        while await redis.ask("SMEMBERS", "test:routers") != {b"r1"}:  # noqa: ASYNC110 (nothing tells)
            await asyncio.sleep(0.05)
        assert router.share.state.is_up
        assert worker.share.state.is_up


@pytest.mark.parametrize(
    "record", [{"name_of_router": "new"}, {"router_id": "new", "epoch": 1, "address": "unix:/run/router"}]
)
async def test_a_router_of_a_newer_version_is_left_out_and_stays(
    record: dict[str, Any], tmp_path: Path
) -> None:
    async with redis_cluster(tmp_path) as (cluster, redis):
        newer = msgspec.msgpack.encode(record)
        await redis.ask("HSET", "test:router:new", "record", newer, "load", newer)
        await redis.ask("SADD", "test:routers", "new")
        router, worker = await made(cluster)
        await asyncio.sleep(1.5)
        assert await redis.ask("SMEMBERS", "test:routers") == {b"r1", b"new"}
        assert router.share.is_first
        assert worker.share.state.is_up


@pytest.mark.parametrize("junk", [("SET", b"junk"), ("LPUSH", b"junk")], ids=["string", "list"])
async def test_keys_of_another_type_are_written_anew(junk: tuple[str, bytes], tmp_path: Path) -> None:
    command, value = junk
    async with redis_cluster(tmp_path) as (cluster, redis):
        router, worker = await made(cluster)
        ids = ("worker:w1", "blocks:w1", "router:r1")
        names = ("workers", "changes", "num-changes", "routers", "loads", *ids)
        for name in names:
            await redis.ask("DEL", f"test:{name}")
            with suppress(ResponseError):  # it is there again
                await redis.ask(command, f"test:{name}", value)
        worker.store(4)
        await converged(router, worker, numbers=NUMBERS)
        late, other = await cluster.router("r2"), await cluster.worker("w2")
        other.store(5)
        for each in (router, late):
            await converged(each, worker, other, numbers=NUMBERS)
        for name in names:
            kind = (await redis.ask("TYPE", f"test:{name}")).decode()
            assert kind in ("none", Keys("test").kind(f"test:{name}"))
        assert all(each.share.state.is_up for each in (router, late, worker, other))


async def test_leases_are_given_back_at_the_end_and_end_by_themselves(tmp_path: Path) -> None:
    async with redis_cluster(tmp_path) as (_, redis):
        keys = ("test:worker:w1", "test:blocks:w1", "test:router:r1")
        async with AsyncExitStack() as life:
            own = LocalityCluster(life, redis)
            await made(own)
            for key in keys:
                assert 0 < await redis.ask("PTTL", key) <= 3000
        assert not await redis.ask("SMEMBERS", "test:workers")
        assert not await redis.ask("SMEMBERS", "test:routers")
        assert await redis.ask("EXISTS", *keys) == 0


async def test_routers_hear_what_others_gave_until_those_are_gone(tmp_path: Path) -> None:
    async with redis_cluster(tmp_path) as (cluster, redis):
        one, other = await cluster.router("r1"), await cluster.router("r2")
        worker = await cluster.worker("w1")
        await until(lambda: one.workers == other.workers == {"w1"})
        reservation = LoadReservation(worker.name, num_tokens=8, num_sequences=1)
        reserved = one.router.fleet.reserve(reservation)
        one.share.on_load_changed()
        await until(lambda: other.heard("r1") == (reservation,))
        assert one.heard("r1") == ()
        await redis.ask("FLUSHALL")
        await asyncio.sleep(1.5)
        assert other.heard("r1") == (reservation,), "it forgot what it knew"
        reserved.release()
        one.share.on_load_changed()
        await until(lambda: other.heard("r1") == ())


async def test_a_router_that_was_given_is_not_dialed_again_under_the_address_that_it_registered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with redis_cluster(tmp_path) as (cluster, redis):
        router, other = await cluster.router("r1"), await cluster.router("r2")
        async with Proxy(router.port) as port:
            worker = CachingWorker("w1", 1, redis.settings(), [f"127.0.0.1:{port}"])
            async with worker.running():
                await until(lambda: router.workers == other.workers == {"w1"})
                await asyncio.sleep(1.2)  # one more look at the registry
                assert router.workers == other.workers == {"w1"}
        assert caplog.text.count("worker w1 joined") == 2, "one session with each"
