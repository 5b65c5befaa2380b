"""Responses in the background: their events as OpenAI's client follows them, and routers that share them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from baton_router.http.response_stores.redis_responses import RedisResponses
from baton_router.http.response_stores.response_store import StoredResponse, response_key
from baton_router.main import RouterServer
from baton_router.process.http_settings import HttpSettings, ResponseStoreLimits
from baton_service.keys import bearer
from tests.integration.chat_client import EOS
from tests.integration.router_cluster import TOKENIZER, access_to, serving
from tests.integration.scripted_worker import ScriptedWorker, until
from tests.redis_server import RedisServer, needs_redis, redis_server

TEXT = "Good day to all of you."
ANSWERS = [(*TOKENIZER.encode(TEXT, add_special_tokens=False), EOS)]
STREAMED: dict[str, Any] = {"model": "tiny", "input": "x", "background": True, "stream": True}
KEY = "first"


@asynccontextmanager
async def client_of(server: RouterServer, key: str = KEY) -> AsyncIterator[openai.AsyncOpenAI]:
    url = f"http://127.0.0.1:{server.http_port}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as client:
        yield client


@asynccontextmanager
async def router(
    worker: ScriptedWorker, **settings: Any
) -> AsyncIterator[tuple[RouterServer, openai.AsyncOpenAI]]:
    """A router with a worker, and OpenAI's client of it."""
    http = HttpSettings(api_keys=(KEY, "second"))
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(http=http, **settings))
        await stack.enter_async_context(worker.joined(server.grpc_port, access_to(server)))
        yield server, await stack.enter_async_context(client_of(server))


async def read(stream: Any, num_events: int | None = None) -> list[Any]:
    """Read so many events, or all, and hang up."""
    events = []
    async with stream:
        async for event in stream:
            events.append(event)
            if len(events) == num_events:
                break
    return events


async def test_a_client_that_hung_up_follows_a_response_from_where_it_was() -> None:
    worker = ScriptedWorker("w1", answers=ANSWERS, num_steps=3)
    async with router(worker) as (_, client):
        begun = await read(await client.responses.create(**STREAMED), 5)
        assert [event.type.removeprefix("response.") for event in begun] == [
            *("created", "in_progress"),
            *("output_item.added", "content_part.added", "output_text.delta"),
        ]
        name = begun[0].response.id
        following = asyncio.create_task(
            read(await client.responses.retrieve(name, stream=True, starting_after=4))
        )
        worker.go_on(name.removeprefix("resp_"))
        rest = await following
        assert [event.sequence_number for event in begun + rest] == list(range(len(begun + rest)))
        assert rest[-1].type == "response.completed"
        whole = await client.responses.retrieve(name)
        assert rest[-1].response == whole
        assert whole.output_text == TEXT
        replayed = await read(await client.responses.retrieve(name, stream=True))
        assert replayed == begun + rest
        async with client.responses.stream(response_id=name, starting_after=4) as helper:
            assert (await helper.get_final_response()).output_text == TEXT
        assert await read(await client.responses.retrieve(name, stream=True, starting_after=99)) == []

        plain = await client.responses.create(model="tiny", input="x", background=True)
        with pytest.raises(openai.BadRequestError, match="stream is true; allowed: false, unless"):
            await client.responses.retrieve(plain.id, stream=True)
        with pytest.raises(openai.BadRequestError, match=r"starting_after is 1; allowed: .*stream=true"):
            await client.responses.retrieve(name, starting_after=1)


@needs_redis
async def test_routers_share_responses_and_those_of_one_that_is_gone_have_failed(tmp_path: Path) -> None:
    maker = ScriptedWorker("w1", answers=ANSWERS, num_steps=3)
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(redis_server(tmp_path))
        shared: dict[str, Any] = {"redis": redis.settings(), "request_timeout_s": 20.0}
        other = router(ScriptedWorker("w2", answers=ANSWERS), **shared)
        server, there = await stack.enter_async_context(other)
        async with router(maker, **shared) as (_, here):
            await _made_here_and_used_there(maker, here, there)
            async with client_of(server, "second") as stranger:
                kept = await there.responses.create(model="tiny", input="x")
                with pytest.raises(openai.NotFoundError):
                    await stranger.responses.retrieve(kept.id)
            name = (await here.responses.create(model="tiny", input="x", background=True)).id
        left = await there.responses.retrieve(name)
        assert left.error is not None
        assert (left.status, left.error.message) == ("failed", "the router shuts down (unavailable)")

        name = await _put_by_a_router_that_was_killed(
            redis, server, (await there.responses.with_raw_response.retrieve(kept.id)).content
        )
        (last,) = await read(await there.responses.retrieve(name, stream=True))
        assert (last.type, last.response.status) == ("response.failed", "failed")
        killed = await there.responses.retrieve(name)
        assert killed.error is not None
        assert killed.error.message.startswith("the router that made the response is gone, or was without")

        redis.kill()
        unstored = await there.responses.create(input="x")
        assert (unstored.output_text, unstored.store) == (TEXT, False)
        wanting: list[dict[str, Any]] = [
            *({"store": True}, {"background": True}, {"previous_response_id": kept.id})
        ]
        for fields in wanting:
            with pytest.raises(openai.InternalServerError, match="kept in Redis, which fails") as caught:
                await there.responses.create(input="x", **fields)
            assert caught.value.status_code == 503


async def _made_here_and_used_there(
    maker: ScriptedWorker, here: openai.AsyncOpenAI, there: openai.AsyncOpenAI
) -> None:
    first = await there.responses.create(input="Hello!")
    assert first.store
    assert (await here.responses.retrieve(first.id)).output_text == TEXT
    begun = await read(await here.responses.create(**STREAMED, previous_response_id=first.id), 3)
    name = begun[0].response.id
    assert (await there.responses.retrieve(name)).status == "in_progress"
    assert len((await there.responses.input_items.list(name)).data) == 3
    following = asyncio.create_task(read(await there.responses.retrieve(name, stream=True, starting_after=2)))
    maker.go_on(name.removeprefix("resp_"))
    events = begun + await following
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].response.output_text == TEXT
    assert (await there.responses.create(input="y", previous_response_id=name)).output_text == TEXT
    await there.responses.delete(name)
    with pytest.raises(openai.NotFoundError):
        await here.responses.retrieve(name)

    maker.pause(3)
    streamed = await here.responses.create(**STREAMED)
    created = await anext(aiter(streamed))
    name = created.response.id
    assert (await there.responses.cancel(name)).status == "cancelled"
    assert "completed" not in {event.type async for event in streamed}, "its stream ends"
    await until(lambda: maker.num_cancels(name.removeprefix("resp_")) == 1)


async def _put_by_a_router_that_was_killed(redis: RedisServer, server: RouterServer, body: bytes) -> str:
    """Keep a response that is in progress, and let its lease end; returns its id."""
    gone = RedisResponses(redis.settings(), ResponseStoreLimits(), lease_s=0.1)
    key = response_key(server._keys.tenant(bearer(KEY)) or "", "resp_gone")
    await gone.put(key, StoredResponse(body=body, has_events=True), lambda: None)
    await gone.close()
    await asyncio.sleep(0.2)
    return "resp_gone"
