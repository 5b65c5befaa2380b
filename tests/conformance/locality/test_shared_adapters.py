"""Adapters that routers were told to load: all routers of a Redis serve them, those that start later too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from baton_core.errors import ErrorCode, RequestError
from baton_core.requests.adapter import Adapter
from baton_router.process.http_settings import HttpSettings
from baton_router.redis.adapter_list import AdapterList
from baton_router.requests import served_adapters
from baton_router.requests.served_adapters import ServedAdapters
from baton_service.redis.link import RedisLink
from tests.adapters import make_adapter
from tests.integration.http_router import client_of, error_of
from tests.integration.router_cluster import serving
from tests.integration.scripted_worker import until
from tests.models import make_model
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
async def test_routers_serve_what_one_of_them_was_told_to_load(tmp_path: Path) -> None:
    async def check(link: RedisLink, kill: Callable[[], None]) -> None:
        async with following(link) as (first, here), following(link) as (_, there):
            for name in ("sql", "law"):
                await first.put(adapter(name))
                here.add(adapter(name))
            await until(lambda: set(there.names) == {"base", "given", "sql", "law"}, WITHIN_S)
            assert there.find("law") == adapter("law")
            here.remove("sql")
            await first.remove("sql")
            await until(lambda: set(there.names) == {"base", "given", "law"}, WITHIN_S)
            await link.command("FLUSHALL")  # what Redis has lost is written again
            async with following(link) as (_, later):
                await until(lambda: set(later.names) == {"base", "given", "law"}, WITHIN_S)
            kill()
            with pytest.raises(RequestError, match="adapters are shared through Redis") as refused:
                await first.put(adapter("more"))
            assert refused.value.code == ErrorCode.UNAVAILABLE
            assert "law" in here.names

    async with redis_server(tmp_path) as redis:
        link = RedisLink(redis.settings())
        try:
            await check(link, redis.kill)
        finally:
            await link.close(nothing)


@needs_redis
async def test_what_cannot_be_read_in_the_list_unloads_nothing_and_is_removed(tmp_path: Path) -> None:
    key = "test:adapters"

    async def settled(link: RedisLink, *names: bytes) -> None:
        """Wait until the list has these names, each with a record that can be read."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                found = (
                    await link.command("HGETALL", key) if await link.command("TYPE", key) == b"hash" else {}
                )
                if found.keys() == {b"", *names} and b"junk" not in found.values():
                    return
                await asyncio.sleep(0.05)

    async def check(link: RedisLink) -> None:
        newer = msgspec.msgpack.encode({"title": "of another version"})
        async with following(link) as (first, here), following(link) as (_, there):
            for name in ("sql", "law"):
                await first.put(adapter(name))
                here.add(adapter(name))
            await until(lambda: set(there.names) == {"base", "given", "sql", "law"}, WITHIN_S)
            await link.command("HSET", key, "stranger", b"junk", "sql", b"junk", "newer", newer)
            await settled(link, b"sql", b"law", b"newer")
            for words, name in ((("SET", key, b"junk"), "one"), (("HSET", key, "stranger", b"junk"), "two")):
                await link.command("DEL", key)
                await link.command(*words)
                await first.put(adapter(name))
                here.add(adapter(name))
                await until(lambda name=name: name in there.names, WITHIN_S)
                await settled(link, *(loaded.name.encode() for loaded in here.loaded))
            assert {*here.names} == {*there.names} == {"base", "given", "sql", "law", "one", "two"}
            assert link.state.is_up

    async with redis_server(tmp_path) as redis:
        link = RedisLink(redis.settings())
        try:
            await check(link)
        finally:
            await link.close(nothing)


@needs_redis
async def test_calls_that_fail_change_neither_the_router_nor_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_adapters, "MAX_ADAPTERS", 1)
    path = str(make_adapter(tmp_path / "adapter", make_model(tmp_path / "model", "llama")))
    settings = {"lora_modules": (f"one={path}",), "max_lora_rank": 16}
    async with redis_server(tmp_path) as redis:
        http = HttpSettings(enable_operator_routes=True)
        async with (
            serving(redis=redis.settings(), http=http, **settings) as server,
            client_of(server) as client,
        ):
            more = {"lora_name": "more", "lora_path": path}
            response = await client.post("/v1/load_lora_adapter", json=more)
            assert error_of(response)[::2] == (429, "1 adapters are served; allowed: 1")
            link = RedisLink(redis.settings())
            assert b"more" not in await link.command("HGETALL", "test:adapters")
            await link.close(nothing)
            redis.kill()
            for _ in range(2):
                response = await client.post("/v1/unload_lora_adapter", json={"lora_name": "one"})
                assert response.status_code == 503
            assert "one" in (await client.get("/v1/models")).text
