"""Somebody who can write to Redis fills it with junk and empties it: no answer changes, and none is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from redis.exceptions import ResponseError

from baton import LLM
from baton_core.sessions.worker_info import Role
from tests.integration.asking_clients import PARAMS, PROMPTS, Clients
from tests.integration.router_cluster import MODEL, serving
from tests.integration.scripted_worker import until
from tests.integration.worker_cluster import made
from tests.redis_server import RedisServer, needs_redis, redis_server
from tests.tiers import exhaustive

NUM_ROUNDS: Final = 12
WITHIN_S: Final = 20.0


async def fill_with_junk(redis: RedisServer, rng: Random) -> None:
    """Replace every key of the namespace by something of another type or content, and add some of its own."""
    keys = [*await redis.ask("KEYS", "test:*"), b"test:worker:stranger", b"test:router:stranger"]
    for key in keys:
        junk = rng.randbytes(rng.choice((0, 1, 40, 5000)))
        replaces = rng.random() < 0.7
        if replaces:
            await redis.ask("DEL", key)
        commands: tuple[tuple[Any, ...], ...] = (
            ("SET", key, junk),
            ("HSET", key, "record", junk, "number", junk, "epoch", b"-1"),
            ("SADD", key, junk, b"stranger", b"\xff"),
            ("RPUSH", key, junk),
            ("XADD", key, "*", "header", junk, "blocks", junk),
        )
        command = rng.choice(commands)
        if replaces or (await redis.ask("TYPE", key)) == {"HSET": b"hash", "SADD": b"set"}.get(command[0]):
            with suppress(ResponseError):  # the router or the worker was faster, and has it right again
                await redis.ask(*command)


async def flush(redis: RedisServer, rng: Random) -> None:
    await redis.ask(rng.choice(("FLUSHALL", "FLUSHDB")))


@asynccontextmanager
async def asked(redis: RedisServer, expected: list[list[int]]) -> AsyncIterator[Clients]:
    """Clients of a router and a worker that know of each other and of their caches through Redis."""
    async with AsyncExitStack() as stack:
        worker, _ = await stack.enter_async_context(made(Role.MIXED, 0, name="w1", redis=redis.settings()))
        running = asyncio.create_task(worker.run())
        try:
            router = await stack.enter_async_context(serving(redis=redis.settings(), split="never"))
            await until(lambda: router._router.is_ready, WITHIN_S)
            clients = Clients(f"127.0.0.1:{router.grpc_port}", expected)
            async with clients.asking(2):
                yield clients
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


@needs_redis
@pytest.mark.parametrize("spoil", [fill_with_junk, exhaustive(flush)], ids=["junk", "flushes"])
def test_a_redis_that_a_stranger_spoils_changes_and_loses_no_answer(spoil: Any, tmp_path: Path) -> None:
    llm = LLM(str(MODEL), dtype="float32", block_size=32)
    expected = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]

    async def scenario() -> None:
        rng = Random(11)
        async with redis_server(tmp_path) as redis, asked(redis, expected) as clients:
            await clients.more_answers(4)
            for _ in range(NUM_ROUNDS):
                await spoil(redis, rng)
                await clients.more_answers(3)
            await until_known(redis)  # what is true comes back by itself
            await clients.more_answers(6)
            assert not clients.errors, clients.errors
            assert not clients.wrong

    asyncio.run(asyncio.wait_for(scenario(), 110))


async def until_known(redis: RedisServer) -> None:
    """Wait until the worker and the router have written themselves down anew, and nobody else is there."""
    async with asyncio.timeout(WITHIN_S):
        while not await is_known(redis):  # noqa: ASYNC110 (no event)
            await asyncio.sleep(0.05)


async def is_known(redis: RedisServer) -> bool:
    keys = ("test:worker:w1", "test:workers", "test:routers")
    if [await redis.ask("TYPE", key) for key in keys] != [b"hash", b"set", b"set"]:
        return False
    info = await redis.ask("HGET", keys[0], "info")
    routers = await redis.ask("SMEMBERS", keys[2])
    return info is not None and b"w1" in info and len(routers) == 1 and b"stranger" not in routers
