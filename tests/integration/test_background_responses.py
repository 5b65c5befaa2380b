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
from tests.integration.chat_client import EOS
from tests.integration.router_cluster import TOKENIZER, access_to, run, serving
from tests.integration.scripted_worker import ScriptedWorker, until
from tests.redis_server import needs_redis, redis_server

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


def test_a_client_that_hung_up_follows_a_response_from_where_it_was() -> None:
    async def scenario() -> None:
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
            with pytest.raises(openai.BadRequestError, match="stream is True; allowed: false, unless"):
                await client.responses.retrieve(plain.id, stream=True)
            with pytest.raises(openai.BadRequestError, match=r"starting_after is 1; allowed: .*stream=true"):
                await client.responses.retrieve(name, starting_after=1)

    run(scenario())


@needs_redis
def test_routers_share_responses_and_those_of_one_that_is_gone_have_failed(tmp_path: Path) -> None:
    async def scenario() -> None:
        maker, other = (
            ScriptedWorker(name, answers=ANSWERS, num_steps=steps)
            for name, steps in (("w1", 3), ("w2", None))
        )
        async with AsyncExitStack() as stack:
            redis = await stack.enter_async_context(redis_server(tmp_path))
            shared: dict[str, Any] = {"redis": redis.settings(), "request_timeout_s": 20.0}
            _, here = await stack.enter_async_context(router(maker, **shared))
            server, there = await stack.enter_async_context(router(other, **shared))
            stranger = await stack.enter_async_context(client_of(server, "second"))

            first = await there.responses.create(input="Hello!")
            assert (first.store, (await here.responses.retrieve(first.id)).output_text) == (True, TEXT)
            with pytest.raises(openai.NotFoundError):
                await stranger.responses.retrieve(first.id)

            begun = await read(await here.responses.create(**STREAMED, previous_response_id=first.id), 3)
            name = begun[0].response.id
            assert (await there.responses.retrieve(name)).status == "in_progress"
            assert len((await there.responses.input_items.list(name)).data) == 3
            following = asyncio.create_task(
                read(await there.responses.retrieve(name, stream=True, starting_after=2))
            )
            maker.go_on(name.removeprefix("resp_"))
            events = begun + await following
            assert [event.sequence_number for event in events] == list(range(len(events)))
            assert events[-1].response.output_text == TEXT
            assert (await there.responses.create(input="y", previous_response_id=name)).output_text == TEXT
            await there.responses.delete(name)
            with pytest.raises(openai.NotFoundError):
                await here.responses.retrieve(name)

            maker._num_steps = 3
            name = (await here.responses.create(input="x", background=True)).id
            assert (await there.responses.cancel(name)).status == "cancelled"
            await until(lambda: maker.num_cancels(name.removeprefix("resp_")) == 1)

            name = "resp_gone"
            body = (await there.responses.with_raw_response.retrieve(first.id)).content
            body = body.replace(first.id.encode(), name.encode()).replace(b'"completed"', b'"in_progress"')
            gone = RedisResponses(redis.settings(), ResponseStoreLimits(), lease_s=0.1)
            key = response_key(server._keys.tenant(f"Bearer {KEY}") or "", name)
            await gone.put(key, StoredResponse(body=body, has_events=True), lambda: None)
            await gone.close()
            (last,) = await read(await there.responses.retrieve(name, stream=True))
            assert (last.type, last.response.status) == ("response.failed", "failed")
            error = (await here.responses.retrieve(name)).error
            assert (error.code, error.message) == ("unavailable", "the router that made the response is gone")

            redis.kill()
            unstored = await there.responses.create(input="x")
            assert (unstored.output_text, unstored.store) == (TEXT, False)
            for wanting in ({"store": True}, {"background": True}, {"previous_response_id": first.id}):
                with pytest.raises(
                    openai.InternalServerError, match="kept in Redis, which fails now"
                ) as caught:
                    await there.responses.create(input="x", **wanting)
                assert caught.value.status_code == 503

    run(scenario())
