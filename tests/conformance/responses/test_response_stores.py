"""The promises of every store of responses: one in memory, and one in a real Redis that two routers share."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from baton_core.errors import InvalidConfigError, RequestError
from baton_core.requests.sampling_params import SamplingParams
from baton_router.http.response_stores.local_responses import LocalResponses
from baton_router.http.response_stores.redis_responses import RedisResponses
from baton_router.http.response_stores.response_store import (
    PAGE_EVENTS,
    EventPage,
    ResponseStore,
    RunningResponse,
    StoredResponse,
    response_key,
)
from baton_router.http.responses.conversations import find_response
from baton_router.http.responses.response_reply import new_response
from baton_router.http.responses.schemas import ResponsesRequest
from baton_router.process.http_settings import ResponseStoreLimits
from tests.integration.scripted_worker import until
from tests.integration.tcp_proxy import Proxy
from tests.redis_server import RedisServer, needs_redis, redis_server

kinds = pytest.mark.parametrize("kind", ["memory", pytest.param("redis", marks=needs_redis)])


@asynccontextmanager
async def stores(
    kind: str, folder: Path, **limits: Any
) -> AsyncIterator[tuple[ResponseStore, ResponseStore]]:
    """Two stores of the same responses, for the one who makes them and for others."""
    settings = ResponseStoreLimits(**limits)
    if kind == "memory":
        store = LocalResponses(settings)
        yield store, store
        return
    async with redis_server(folder) as redis:
        pair = [RedisResponses(redis.settings(), settings) for _ in range(2)]
        try:
            yield pair[0], pair[1]
        finally:
            for each in pair:
                await each.close()


class Maker:
    """Somebody who makes a response, and notes when that is to stop."""

    def __init__(self) -> None:
        self.is_stopped = False
        self.running: RunningResponse | None = None

    def stop(self) -> None:
        self.is_stopped = True


async def put(store: ResponseStore, key: str, num_bytes: int = 10, *, has_events: bool = False) -> Maker:
    """Keep a response with an item, which take so many bytes, or some more where a store frames items."""
    maker = Maker()
    response = StoredResponse(body=b"x" * (num_bytes - 1), items=(b"y",), has_events=has_events)
    maker.running = await store.put(key, response, maker.stop)
    return maker


async def kept(store: ResponseStore, names: str, tenant: str = "") -> str:
    return "".join([name for name in names if await store.get(response_key(tenant, name)) is not None])


async def found(store: ResponseStore, name: str) -> StoredResponse:
    stored = await store.get(name)
    assert stored is not None
    return stored


async def leased_until(redis: RedisServer, name: str) -> int:
    """Return the time until which a response is leased, in ms."""
    return int(await redis.ask("HGET", f"test:response:{name}", "leased_until"))


@asynccontextmanager
async def proxied(redis: RedisServer) -> AsyncIterator[tuple[Proxy, str]]:
    """Yield a proxy of Redis, and its URL."""
    proxy = Proxy(redis.port)
    async with proxy as port:
        yield proxy, f"redis://127.0.0.1:{port}"


async def next_events(store: ResponseStore, name: str, start: int) -> EventPage:
    """Read a page that is not empty."""
    while (page := await store.read_events(name, start)) is None or not page.events:
        pass
    return page


async def status(store: ResponseStore, name: str) -> str:
    """Return the status of a response, if it can be had."""
    with suppress(RequestError):
        stored = await store.get(name)
        return stored.status if stored else ""
    return ""


@kinds
async def test_the_oldest_go_first_where_bytes_or_number_or_age_are_exceeded(
    kind: str, tmp_path: Path
) -> None:
    async with stores(kind, tmp_path, num_responses=3, num_bytes=1000) as (own, other):
        makers = {name: await put(own, f":{name}") for name in "abcd"}
        assert await kept(other, "abcd") == "bcd"
        makers["e"] = await put(own, ":e", 900)
        assert await kept(other, "bcde") == "cde"
        for name, num_bytes in (("c", 9), ("d", 9), ("e", 980)):
            running = makers[name].running
            assert running is not None
            assert await running.finish(b"x" * num_bytes, "completed")
        assert await kept(other, "cde") == "de"
        assert (await put(own, ":f", 1100)).running is None, "it is larger than all may be together"
        stored = await other.get(":e", with_items=True)
        assert stored is not None
        assert (stored.body, list(stored.items), stored.status) == (b"x" * 980, [b"y"], "completed")
        await until(lambda: makers["a"].is_stopped and makers["b"].is_stopped)
        assert not makers["e"].is_stopped
    async with stores(kind, tmp_path, age_s=0.1) as (own, other):
        await put(own, ":a")
        await asyncio.sleep(0.2)
        assert await kept(other, "a") == ""


@kinds
async def test_who_holds_the_most_gives_way_and_what_is_in_progress_goes_last(
    kind: str, tmp_path: Path
) -> None:
    async with stores(kind, tmp_path, num_responses=4, num_bytes=1000) as (own, other):
        ours = [await put(own, f"t:{name}") for name in "ab"]
        theirs = {name: await put(own, f"u:{name}") for name in "cd"}
        assert theirs["d"].running is not None
        await theirs["d"].running.finish(b"x", "completed")
        theirs["e"] = await put(own, "u:e", 100)
        assert (await kept(other, "ab", "t"), await kept(other, "cde", "u")) == ("ab", "ce")
        await put(own, "u:f", 900)
        assert (await kept(other, "ab", "t"), await kept(other, "cef", "u")) == ("ab", "f")
        assert (await put(own, "v:g", 985)).running is None, "the others hold less than it would"
        assert (await kept(other, "ab", "t"), await kept(other, "f", "u")) == ("ab", "f")
        await until(lambda: theirs["c"].is_stopped and theirs["e"].is_stopped)
        assert not any(maker.is_stopped for maker in ours)


@kinds
async def test_tenants_have_responses_of_their_own_and_a_name_has_one(kind: str, tmp_path: Path) -> None:
    async with stores(kind, tmp_path) as (own, other):
        ours, theirs = response_key("t", "a"), response_key("u", "a")
        first = await put(own, ours)
        await put(own, theirs)
        assert await other.delete(theirs)
        assert not await other.delete(theirs)
        assert await own.get(theirs) is None
        second = await put(own, ours)
        await until(lambda: first.is_stopped)
        assert first.running is not None
        assert second.running is not None
        assert not await first.running.finish(b"1", "completed"), "another one has its name"
        assert await other.finish(ours, b"2", "cancelled")
        await until(lambda: second.is_stopped)
        assert not await second.running.finish(b"3", "completed")
        stored = await own.get(ours)
        assert stored == StoredResponse(body=b"2", items=stored.items if stored else (), status="cancelled")
        given_up = await put(own, ours)
        assert given_up.running is not None
        given_up.running.discard()
        async with asyncio.timeout(5):
            while await other.get(ours) is not None:  # noqa: ASYNC110 (nothing tells)
                await asyncio.sleep(0.01)


@kinds
async def test_events_are_read_from_any_number_on_as_they_come(kind: str, tmp_path: Path) -> None:
    async with stores(kind, tmp_path, num_bytes=8 * 2**14) as (own, other):
        running = (await put(own, "a", has_events=True)).running
        assert running is not None
        reading = asyncio.create_task(next_events(other, "a", 0))
        await asyncio.sleep(0.05)
        running.append(b"0")
        page = await reading
        assert (page.first, page.events, page.num_events, page.is_over) == (0, [b"0"], 1, False)
        for number in range(1, PAGE_EVENTS + 2):
            running.append(b"%d" % number)
        await running.finish(b"whole", "completed")
        page = await other.read_events("a", 1)
        assert page is not None
        assert (page.first, page.events[0], len(page.events), page.is_over) == (1, b"1", PAGE_EVENTS, False)
        page = await other.read_events("a", PAGE_EVENTS + 1)
        assert page is not None
        assert (page.events, page.is_over) == ([b"257"], True)
        page = await other.read_events("a", PAGE_EVENTS + 9)
        assert page is not None
        assert (page.events, page.num_events, page.is_over) == ([], PAGE_EVENTS + 2, True)
        assert await other.read_events("b", 0) is None

        running = (await put(own, "c", has_events=True)).running
        assert running is not None
        for number in range(5):
            running.append(b"%d" % number * 2**12)
        await running.finish(b"whole", "completed")
        page = await other.read_events("c", 0)
        assert page is not None
        assert (page.first, len(page.events), page.num_events) == (1, 4, 5), "the oldest are dropped"


@needs_redis
async def test_a_response_whose_router_is_gone_is_abandoned_and_one_that_is_leased_is_not(
    tmp_path: Path,
) -> None:
    async with redis_server(tmp_path) as redis:
        leased, gone = (
            RedisResponses(redis.settings(), ResponseStoreLimits(), lease_s=lease_s) for lease_s in (5.0, 0.1)
        )
        await put(leased, "a")
        began = await leased_until(redis, "a")
        await put(gone, "b")
        await gone.close()
        while await leased_until(redis, "a") == began or not (await found(leased, "b")).is_abandoned:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert not (await found(leased, "a")).is_abandoned
        assert await leased.finish("b", b"", "failed")
        await leased.close()


@needs_redis
async def test_a_response_whose_lease_ended_while_redis_was_away_goes_on(tmp_path: Path) -> None:
    async with redis_server(tmp_path) as redis, proxied(redis) as to_maker, proxied(redis) as to_reader:
        links = to_maker, to_reader
        maker, reader = (
            RedisResponses(redis.settings(url=url), ResponseStoreLimits(), lease_s=3.0) for _, url in links
        )
        made = new_response(
            ResponsesRequest(input="x"), name="a", model="m", params=SamplingParams(), is_stored=True
        )
        stops: list[None] = []
        body = msgspec.json.encode(made)
        await maker.put(":a", StoredResponse(body=body), lambda: stops.append(None))
        await asyncio.sleep(2.0)
        for proxy, _ in links:
            proxy.is_refusing = True
            proxy.cut()
        await asyncio.sleep(3.2)
        to_reader[0].is_refusing = False
        statuses: list[str] = []
        while len(statuses) < 2:
            with suppress(RequestError):
                statuses.append((await find_response(reader, ":a")).status)
            await asyncio.sleep(0.2)
        assert {*statuses} == {"in_progress"}
        began = await leased_until(redis, ":a")
        to_maker[0].is_refusing = False
        while await leased_until(redis, ":a") == began:  # noqa: ASYNC110 (nothing tells)
            await asyncio.sleep(0.01)
        assert not await reader.finish(":a", b"", "failed", must_be_abandoned=True)
        assert await status(reader, ":a") == "in_progress"
        assert not stops
        await maker.close()
        await reader.close()


@needs_redis
async def test_while_redis_is_away_calls_fail_in_time_and_an_end_waits_for_it(tmp_path: Path) -> None:
    async with redis_server(tmp_path) as redis:
        store = RedisResponses(redis.settings(), ResponseStoreLimits(), within_s=0.3)
        maker = await put(store, "a", has_events=True)
        assert maker.running is not None
        redis.signal(signal.SIGSTOP)
        with pytest.raises(RequestError):
            await put(store, "g")
        maker.running.append(b"0")
        with pytest.raises(RequestError, match="responses are kept in Redis, which fails now"):
            await store.get("a")
        redis.signal(signal.SIGCONT)
        await maker.running.finish(b"whole", "completed")
        async with asyncio.timeout(10):
            while await status(store, "a") != "completed":  # noqa: ASYNC110 (nothing tells)
                await asyncio.sleep(0.05)
        page = await store.read_events("a", 0)
        assert page is not None
        assert (page.events, page.is_over) == ([b"0"], True)
        async with asyncio.timeout(10):
            while await kept(store, "g"):  # noqa: ASYNC110 (what Redis took late is forgotten)
                await asyncio.sleep(0.05)
        lost = await put(store, "b")
        await _restart(redis)
        await until(lambda: lost.is_stopped)
        assert lost.running is not None
        assert not await lost.running.finish(b"", "completed"), "Redis has forgotten it"
        await store.close()


@needs_redis
async def test_an_end_waits_for_redis_longer_than_a_lease_if_it_may_come_later(tmp_path: Path) -> None:
    async with redis_server(tmp_path) as redis, proxied(redis) as (proxy, url):
        store = RedisResponses(redis.settings(url=url), ResponseStoreLimits(), lease_s=0.5)
        makers = [await put(store, name) for name in "ab"]
        proxy.is_refusing = True
        proxy.cut()
        ends = [
            maker.running.finish(b"whole", "completed", may_come_later=may_come_later)
            for maker, may_come_later in zip(makers, (True, False), strict=True)
            if maker.running is not None
        ]
        assert await asyncio.gather(*ends) == [False, False]
        proxy.is_refusing = False
        async with asyncio.timeout(10):
            while await status(store, "a") != "completed" or await status(store, "b"):  # noqa: ASYNC110 (nothing tells)
                await asyncio.sleep(0.05)
        await store.close()


@needs_redis
async def test_what_redis_refuses_for_a_while_waits_for_it(tmp_path: Path) -> None:
    async with redis_server(tmp_path) as redis:
        store = RedisResponses(redis.settings(), ResponseStoreLimits())
        maker = await put(store, "a", has_events=True)
        assert maker.running is not None
        await redis.ask("CONFIG", "SET", "min-replicas-to-write", 1)
        maker.running.append(b"0")
        with pytest.raises(RequestError, match="responses are kept in Redis, which fails now"):
            await put(store, "b")
        await asyncio.sleep(0.2)
        await redis.ask("CONFIG", "SET", "min-replicas-to-write", 0)
        assert await maker.running.finish(b"whole", "completed")
        page = await store.read_events("a", 0)
        assert page is not None
        assert (page.events, page.is_over) == ([b"0"], True)
        assert not maker.is_stopped
        await store.close()


@needs_redis
async def test_junk_in_the_place_of_a_response_ends_that_one_alone(tmp_path: Path) -> None:
    async with redis_server(tmp_path) as redis:
        store = RedisResponses(redis.settings(), ResponseStoreLimits())
        spoiled, other, written = [await put(store, name) for name in "abc"]
        began = await leased_until(redis, "b")
        for name in "ac":
            await redis.ask("SET", f"test:response:{name}", "junk")
        assert written.running is not None
        assert not await written.running.finish(b"whole", "completed")
        await until(lambda: spoiled.is_stopped)
        while await leased_until(redis, "b") == began:  # noqa: ASYNC110 (nothing tells)
            await asyncio.sleep(0.01)
        assert not other.is_stopped
        for name in ("responses", "response-sizes", "response-changes"):
            await redis.ask("SET", f"test:{name}", "junk")
            maker = await put(store, name)
            await redis.ask("SET", f"test:{name}", "junk")
            assert maker.running is not None
            assert await maker.running.finish(b"whole", "completed")
        await redis.ask("HSET", "test:response-sizes", "", "junk", "d", "junk")
        await put(store, "d")
        assert await status(store, "d") == "in_progress"
        await store.close()


async def _restart(redis: RedisServer) -> None:
    redis.kill()
    await redis.start()


def test_limits_are_named_where_they_are_out_of_range() -> None:
    with pytest.raises(InvalidConfigError, match="--max-stored-responses is -1; allowed: 0 or more"):
        ResponseStoreLimits(num_responses=-1)
    with pytest.raises(InvalidConfigError, match="--max-stored-response-age is 0; allowed: seconds, over 0"):
        ResponseStoreLimits(age_s=0)
