"""Two routers, two workers, one Redis, and clients that go on asking while one after the other is killed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import msgspec

from baton import LLM
from baton_core.sessions.worker_info import Role
from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import BatonStub
from baton_router.main import RouterServer
from baton_service.redis.records import RouterRecord
from baton_worker.worker_shell import Worker
from tests.integration.asking_clients import PARAMS, PROMPTS, Clients
from tests.integration.router_cluster import MODEL, serving
from tests.integration.scripted_worker import until
from tests.integration.worker_cluster import KV_CACHE_BYTES, made
from tests.redis_server import RedisServer, needs_redis, redis_server

CONVERGES_WITHIN_S = 20.0
STARTS_WITHIN_S = 60.0
BLOCK_SIZE = 32


@needs_redis
def test_killing_redis_a_worker_and_a_router_loses_nothing_on_those_that_survive(tmp_path: Path) -> None:
    llm = LLM(str(MODEL), dtype="float32", block_size=BLOCK_SIZE)
    expected = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            redis = await stack.enter_async_context(redis_server(tmp_path))
            victims = [await stack.enter_async_context(_process(*command)) for command in _commands(redis)]
            worker = await stack.enter_async_context(_working(redis))
            router = await stack.enter_async_context(serving(redis=redis.settings(), split="never"))
            doomed = await _address_of_other(redis, router)
            await until(lambda: _worker_ids(router) == {"survivor", "victim"}, STARTS_WITHIN_S)
            await _has_workers(doomed, 2)
            here = Clients(f"127.0.0.1:{router.grpc_port}", expected)
            there = Clients(doomed, expected)
            async with here.asking(3), there.asking(3):
                await here.more_answers(6)
                await there.more_answers(6)

                redis.kill()
                await here.more_answers(12)
                await there.more_answers(12)
                await redis.start()
                await _converges(router, worker)
                await here.more_answers(6)
                await there.more_answers(6)
                assert not here.errors, here.errors
                assert not there.errors, there.errors

                victim_router, victim_worker = victims
                victim_worker.kill()
                await until(lambda: _worker_ids(router) == {"survivor"}, CONVERGES_WITHIN_S)
                await _converges(router, worker)
                await here.more_answers(6)
                await there.more_answers(6)
                assert not here.errors, here.errors
                assert not there.errors, there.errors

                victim_router.kill()
                await here.more_answers(12)
                await _converges(router, worker)
                assert not here.errors, here.errors
            assert {code for code, _ in there.errors} == {"UNAVAILABLE"}, "they ask a router that is gone"
            assert not here.wrong
            assert not there.wrong

    asyncio.run(asyncio.wait_for(scenario(), 110))


def _commands(redis: RedisServer) -> tuple[tuple[str, ...], ...]:
    shared = (str(MODEL), "--redis", redis.url, "--redis-namespace", "test", "--session-timeout", "10")
    small = ("--dtype", "float32", "--block-size", str(BLOCK_SIZE), "--num-threads", "1")
    pool = ("--kv-cache-memory-bytes", str(KV_CACHE_BYTES), "--worker-id", "victim")
    return (
        ("router", *shared, "--port", "0", "--grpc-port", "0", "--split", "never"),
        ("mixed-worker", *shared, *small, *pool),
    )


@asynccontextmanager
async def _process(*command: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "baton", *command)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@asynccontextmanager
async def _working(redis: RedisServer) -> AsyncIterator[Worker]:
    async with made(Role.MIXED, 0, name="survivor", redis=redis.settings()) as (worker, _):
        running = asyncio.create_task(worker.run())
        try:
            yield worker
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def _address_of_other(redis: RedisServer, router: RouterServer) -> str:
    """Return the address under which the router in its own process registered."""
    async with asyncio.timeout(STARTS_WITHIN_S):
        while True:
            for key in await redis.ask("KEYS", "test:router:*"):
                record = msgspec.msgpack.decode(await redis.ask("HGET", key, "record"), type=RouterRecord)
                if not record.address.endswith(f":{router.grpc_port}"):
                    return record.address
            await asyncio.sleep(0.05)


async def _has_workers(address: str, num_workers: int) -> None:
    async with grpc.aio.insecure_channel(address) as channel, asyncio.timeout(STARTS_WITHIN_S):
        request, stub = pb.GetModelInfoRequest(), BatonStub(channel)
        while len((await stub.GetModelInfo(request)).workers) < num_workers:  # noqa: ASYNC110 (no event)
            await asyncio.sleep(0.05)


def _worker_ids(router: RouterServer) -> set[str]:
    return {info.worker_id for info, _ in router._router.fleet.workers()}


async def _converges(router: RouterServer, worker: Worker) -> None:
    """Wait until the router believes of each block that the worker ever had what is true now."""

    def held() -> set[bytes]:
        return {*worker._core.pool.cache.snapshot().stored}

    def believed(block_hash: bytes) -> bool:
        views: Any = router._router.fleet.views(BLOCK_SIZE, [block_hash])
        return any(view.worker_id == "survivor" and view.num_cached_tokens for view in views)

    assert held()
    await until(lambda: all(map(believed, held())), CONVERGES_WITHIN_S)
