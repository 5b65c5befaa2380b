"""Streams and their clients: many, slow, gone; and a router that stops."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from baton_core.sessions.router_messages import TokenBatch
from baton_core.sessions.worker_info import Role
from baton_router.process.http_settings import AnswerSettings, HttpSettings
from baton_router.requests.request_limits import RequestLimits
from tests.integration.http_router import chunks_of, client_of, error_of, http_cluster
from tests.integration.router_cluster import ANSWER, PROMPT, TEXT, serving
from tests.integration.scripted_worker import ScriptedWorker, until
from tests.integration.worker_cluster import Said, working

COMPLETIONS = "/v1/completions"


def asked(**body: Any) -> dict[str, Any]:
    return {"prompt": PROMPT, "max_tokens": len(ANSWER), "stream": True, **body}


async def test_many_streams_run_side_by_side() -> None:
    async with http_cluster(ScriptedWorker("w1", answers=[ANSWER, ANSWER])) as client:
        bodies = [asked(n=1 + number % 2) for number in range(64)]
        answers = await asyncio.gather(*(client.post(COMPLETIONS, json=body) for body in bodies))
        for body, answer in zip(bodies, answers, strict=True):
            choices = [choice for chunk in chunks_of(answer.text) for choice in chunk["choices"]]
            for index in range(body["n"]):
                assert "".join(c["text"] for c in choices if c["index"] == index) == TEXT
        assert (await client.get("/load")).json() == {"server_load": 0}


async def test_a_stream_that_is_silent_has_comments_between_its_events() -> None:
    http = HttpSettings(answers=AnswerSettings(keep_alive_s=0.05))
    worker = ScriptedWorker("w1", answers=[ANSWER], num_steps=1)
    async with http_cluster(worker, http=http) as client:
        named = {"x-request-id": "r1"}
        async with client.stream("POST", COMPLETIONS, json=asked(), headers=named) as answer:
            pieces = answer.aiter_text()
            first, *silence = [await anext(pieces) for _ in range(3)]
            assert silence == [": keepalive\n\n"] * 2
            worker.go_on("r1")
            rest = first + "".join([text async for text in pieces])
        events = [event for event in rest.split("\n\n") if not event.startswith(":")]
        choices = [choice for chunk in chunks_of("\n\n".join(events)) for choice in chunk["choices"]]
        assert "".join(choice["text"] for choice in choices) == TEXT


@pytest.mark.parametrize(("of_router", "asked_for"), [(1, 3), (3, None), (3, 2)])
async def test_events_have_as_many_tokens_as_the_larger_interval_says(
    of_router: int, asked_for: int | None
) -> None:
    limits = RequestLimits(stream_interval=of_router)
    more = {} if asked_for is None else {"stream_interval": asked_for}
    async with http_cluster(ScriptedWorker("w1", answers=[ANSWER]), limits=limits) as client:
        answer = await client.post(COMPLETIONS, json=asked(return_token_ids=True, logprobs=0, **more))
        choices = [choice for chunk in chunks_of(answer.text) for choice in chunk["choices"]]
        sizes = [len(choice["token_ids"]) for choice in choices if choice["token_ids"]]
        assert "".join(choice["text"] for choice in choices) == TEXT
        rest = len(ANSWER) - 1
        assert sizes == [1, *[3] * (rest // 3), *([rest % 3] if rest % 3 else [])]


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_client_that_hangs_up_ends_its_work_and_frees_its_blocks(
    said: Said, is_streamed: bool
) -> None:
    """The worker is whole, and would go on for thousands of tokens."""
    body = asked(max_tokens=4000, prompt=[PROMPT, PROMPT], n=2, stream=is_streamed, ignore_eos=True)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving())
        await stack.enter_async_context(working(Role.MIXED, server.grpc_port))
        client = await stack.enter_async_context(client_of(server))
        await until(lambda: "mixed" in said.loads)
        num_blocks = said.num_blocks("mixed")
        async with client_of(server) as leaving:
            request = leaving.build_request("POST", COMPLETIONS, json=body)
            answering = asyncio.create_task(leaving.send(request, stream=True))
            await until(lambda: said.loads["mixed"].num_running == 4)
            assert said.num_blocks("mixed") < num_blocks
            if is_streamed:
                await (await answering).aclose()
            answering.cancel()
        said.loads.clear()
        await until(lambda: "mixed" in said.loads and said.num_blocks("mixed") == num_blocks)
        batches = [message for message in said.messages if isinstance(message, TokenBatch)]
        outputs = [output for batch in batches for output in batch.outputs]
        assert [output for output in outputs if output.finish_reason is not None] == []
        assert (await client.get("/load")).json() == {"server_load": 0}


@pytest.mark.parametrize("reads", [True, False])
async def test_only_a_client_that_does_not_read_is_given_up(reads: bool) -> None:
    name = "m" * 2**17  # stands in each chunk, so that the system's buffers are soon full
    body = json.dumps(asked(max_tokens=2000, request_id="r1")).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    worker = ScriptedWorker("w1", answers=[[5] * 2000], num_steps=100)
    async with serving(served_model_names=(name,)) as server, worker.joined(server.grpc_port):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.http_port, limit=2**16)
        writer.write(head + body)
        parts: list[int] = []
        reading = asyncio.create_task(last_events(reader, parts)) if reads else None
        await until(lambda: bool(worker.commands))
        for _ in range(19):
            worker.go_on("r1", 100)
            num_parts = -1
            while num_parts < len(parts):  # a reader on a slow machine takes what there is all the same
                num_parts = len(parts)
                await asyncio.sleep(0.02)
        if reading is None:
            await until(lambda: worker.num_cancels("r1") == 1)
        last = await (reading or last_events(reader, parts))
        assert (b"reads too slowly" in last) is not reads
        writer.close()
        await writer.wait_closed()


async def last_events(reader: asyncio.StreamReader, parts: list[int]) -> bytes:
    """The end of a stream, once it is there; `parts` gets the length of each one that is read."""
    end = b""
    while not end.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
        part = await reader.read(2**20)
        parts.append(len(part))
        end = (end + part)[-1000:]
    return end


async def test_a_client_that_leaves_while_it_sends_is_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.http_port)
        writer.write(f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{{".encode())
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.close()
        await writer.wait_closed()
        async with client_of(server) as client:
            assert (await client.get("/load")).json() == {"server_load": 0}
    assert not [line for line in caplog.records if line.levelname in ("WARNING", "ERROR")]


async def test_an_error_in_mid_stream_is_an_event() -> None:
    worker = ScriptedWorker("w1", answers=[ANSWER], num_steps=3)
    served = serving(move_timeout_s=0.5)
    async with served as server, worker.joined(server.grpc_port), client_of(server) as client:
        async with client.stream("POST", COMPLETIONS, json=asked()) as answer:
            lines = answer.aiter_lines()
            begun = json.loads((await anext(lines)).removeprefix("data: "))
            assert begun["choices"][0]["finish_reason"] is None
            await worker.client.close()
            *tokens, failed, last = [line async for line in lines if line]
        assert all(json.loads(text.removeprefix("data: "))["choices"] for text in tokens)
        error = httpx.Response(502, content=failed.removeprefix("data: "))
        assert error_of(error)[2].startswith("worker w1 ")
        assert last == "data: [DONE]"


async def test_a_stopping_router_ends_its_streams() -> None:
    worker = ScriptedWorker("w1", answers=[ANSWER], num_steps=3)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(shutdown_timeout_s=3.0))
        await stack.enter_async_context(worker.joined(server.grpc_port))
        client = await stack.enter_async_context(client_of(server))
        request = client.build_request("POST", COMPLETIONS, json=asked())
        answer = await client.send(request, stream=True)
        stopping = asyncio.create_task(server.stop())
        await asyncio.sleep(0)
        refused = await client.post(COMPLETIONS, json=asked())
        assert error_of(refused) == (503, None, "the router shuts down")
        assert (await client.get("/health")).status_code == 503
        *_, error, done, _ = (await answer.aread()).split(b"\n\n")
        assert json.loads(error.removeprefix(b"data: "))["error"]["message"] == "the router shuts down"
        assert done == b"data: [DONE]"
        await stopping
        with pytest.raises(httpx.ConnectError):
            await client.get("/health")
