"""Adapters that routers were told to load: all routers of a Redis serve them, those that start later too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from baton_core.errors import ErrorCode, RequestError
from baton_core.requests.adapter import Adapter
from baton_router.redis.adapter_list import AdapterList
from baton_router.requests.served_adapters import ServedAdapters
from baton_service.redis.link import RedisLink
from tests.integration.scripted_worker import until
from tests.redis_server import needs_redis, redis_server

WITHIN_S = 20.0


def adapter(name: str) -> Adapter:
    return Adapter(name=name, digest=f"digest of {name}", path=f"/adapters/{name}")


@asynccontextmanager
async def following(link: RedisLink) -> AsyncIterator[tuple[AdapterList, ServedAdapters]]:
    """Yield a router's list and what it serves: the base, and one adapter that it was started with."""
    shared, served = AdapterList(link), ServedAdapters(("base",), 16)
    served.add(adapter("given"), is_given=True)
    task = asyncio.create_task(shared.run(served))
    try:
        yield shared, served
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def nothing() -> None: ...


@needs_redis
def test_routers_serve_what_one_of_them_was_told_to_load(tmp_path: Path) -> None:
    async def check(link: RedisLink, kill: Callable[[], None]) -> None:
        async with following(link) as (first, here), following(link) as (_, there):
            for name in ("sql", "law"):
                await first.put(adapter(name))
                here.add(adapter(name))
            await until(lambda: there.names == ("base", "given", "sql", "law"), WITHIN_S)
            assert there.find("law") == adapter("law")
            here.remove("sql")
            await first.remove("sql")
            await until(lambda: there.names == ("base", "given", "law"), WITHIN_S)
            await link.command("FLUSHALL")  # what Redis has lost is written again
            async with following(link) as (_, later):
                await until(lambda: later.names == ("base", "given", "law"), WITHIN_S)
            kill()
            with pytest.raises(RequestError, match="adapters are shared through Redis") as refused:
                await first.put(adapter("more"))
            assert refused.value.code == ErrorCode.UNAVAILABLE
            assert "law" in here.names

    async def scenario() -> None:
        async with redis_server(tmp_path) as redis:
            link = RedisLink(redis.settings())
            try:
                await check(link, redis.kill)
            finally:
                await link.close(nothing)

    asyncio.run(scenario())
