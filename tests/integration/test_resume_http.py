"""Streams over HTTP that break behind any chunk and go on elsewhere; what is generated is scripted."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest

from baton_router.core.placement.placement_config import SplitMode
from baton_router.process.http_settings import HttpSettings
from tests.integration.chat_client import CLOCK, EOS, HELLO, WEATHER, ChattyWorker
from tests.integration.http_router import chunks_of, client_of, error_of
from tests.integration.router_cluster import TOKENIZER, serving

PARSED = HttpSettings(enable_auto_tool_choice=True, tool_call_parser="hermes", reasoning_parser="qwen3")
CALLING = (
    '<think>Shall I call 你好?</think>Yes. <tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n'
    '</tool_call><tool_call>{"name": "clock", "arguments": {}}</tool_call>'
)
TEXT = "The quick brown fox, and 你好 to all. The end is not near."
ALL = {"stream": True, "return_token_ids": True, "stream_options": {"include_usage": True}}
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "completion": (
        "/v1/completions",
        {"prompt": "Hi", "n": 2, "logprobs": 2, "echo": True, "max_tokens": 99, "stop": "end", **ALL},
    ),
    "chat": (
        "/v1/chat/completions",
        {"messages": HELLO, "n": 2, "logprobs": True, "top_logprobs": 1, "prompt_logprobs": 1, **ALL},
    ),
    "calls and thoughts": ("/v1/chat/completions", {"messages": HELLO, "tools": [WEATHER, CLOCK], **ALL}),
    "tokens": (
        "/inference/v1/generate",
        {
            "token_ids": [5, 6, 7],
            "sampling_params": {"n": 2, "logprobs": 1, "prompt_logprobs": 1, "max_tokens": 99},
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    ),
}


@asynccontextmanager
async def two_routers(text: str, tokens_at_once: int) -> AsyncIterator[list[httpx.AsyncClient]]:
    """Clients of two routers whose workers answer alike, in other steps."""
    answer = [*TOKENIZER.encode(text, add_special_tokens=False), EOS]
    async with AsyncExitStack() as stack:
        clients = []
        for name, step in (("one", 1), ("other", tokens_at_once)):
            server = await stack.enter_async_context(serving(http=PARSED, split=SplitMode.NEVER))
            worker = ChattyWorker(name, answers=[answer, answer[3:]], num_tokens_per_output=step)
            await stack.enter_async_context(worker.joined(server.grpc_port))
            clients.append(await stack.enter_async_context(client_of(server)))
        yield clients


def merged(chunks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """All that chunks say, as a client puts it together; names that routers choose are left out."""
    whole: dict[str, Any] = {"choices": {}}
    for chunk in chunks:
        for choice in chunk["choices"]:
            _add(whole["choices"].setdefault(choice["index"], {}), choice)
        for key in ("usage", "prompt_logprobs"):
            if chunk.get(key) is not None:
                assert key not in whole
                whole[key] = chunk[key]
    return whole


def _add(into: dict[str, Any], piece: dict[str, Any]) -> None:
    for key, value in piece.items():
        if value is None or key == "id":
            continue
        if key == "tool_calls":
            calls = into.setdefault(key, {})
            for call in value:
                _add(calls.setdefault(call["index"], {}), call)
        elif isinstance(value, dict):
            _add(into.setdefault(key, {}), value)
        elif key in ("index", "type", "prompt_token_ids"):
            assert into.setdefault(key, value) == value
        elif isinstance(value, str | list):
            into[key] = into[key] + value if key in into else value
        else:
            assert key not in into
            into[key] = value


def counts_of(chunks: Sequence[dict[str, Any]], n: int) -> list[int]:
    counts = [0] * n
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        counts[choice["index"]] += len(choice.get("token_ids", ()))
    return counts


def has_tokens(chunk: dict[str, Any]) -> bool:
    return any(choice.get("token_ids") for choice in chunk["choices"])


@pytest.mark.parametrize("name", CALLS)
async def test_the_rest_of_a_stream_comes_from_another_router(name: str) -> None:
    path, body = CALLS[name]
    text = CALLING if name == "calls and thoughts" else TEXT
    async with two_routers(text, tokens_at_once=4) as (here, there):
        response = await here.post(path, json=body)
        assert response.status_code == 200, response.text
        chunks = chunks_of(response.text)
        token = chunks[0]["resume_token"]
        assert response.headers["x-resume-token"] == token
        assert not any("resume_token" in chunk for chunk in chunks[1:])
        whole = merged(chunks)
        n = len(whole["choices"])
        with_tokens = [number for number, chunk in enumerate(chunks, 1) if has_tokens(chunk)]
        for cut in (0, *with_tokens[:3], *with_tokens[3::5], with_tokens[-1]):
            counts = counts_of(chunks[:cut], n)
            given = {"resume_token": token, "num_received_tokens": counts}
            response = await there.post(path, json={**body, **given})
            rest = chunks_of(response.text)
            assert merged([*chunks[:cut], *rest]) == whole, cut
            assert rest[0].get("resume_token", token) == token
            assert {chunk.get("id") for chunk in rest} == {chunks[0].get("id")}


async def test_a_chat_without_token_ids_counts_by_its_usage_so_far() -> None:
    async with two_routers(TEXT, tokens_at_once=3) as (here, there):
        body = {"messages": HELLO, "stream": True, "stream_options": {"continuous_usage_stats": True}}
        chunks = chunks_of((await here.post("/v1/chat/completions", json=body)).text)
        half = len(chunks) // 2
        given = {
            "resume_token": chunks[0]["resume_token"],
            "num_received_tokens": chunks[half - 1]["usage"]["completion_tokens"],
        }
        rest = chunks_of((await there.post("/v1/chat/completions", json={**body, **given})).text)
        texts = [
            "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in one)
            for one in (chunks, [*chunks[:half], *rest])
        ]
        assert texts == [TEXT, TEXT]
        assert rest[-1]["usage"] == chunks[-1]["usage"]


async def test_each_of_several_prompts_goes_on_alone() -> None:
    async with two_routers(TEXT, tokens_at_once=1) as (here, there):
        body: dict[str, Any] = {"prompt": ["Hi", "Ho"], "max_tokens": 99, "return_token_ids": True}
        response = await here.post("/v1/completions", json={**body, "stream": True})
        assert "x-resume-token" not in response.headers
        chunks = chunks_of(response.text)
        for number, prompt in enumerate(body["prompt"]):
            mine = [chunk for chunk in chunks if chunk["choices"][0]["index"] == number]
            given = {"resume_token": mine[0]["resume_token"], "num_received_tokens": [2]}
            again = {**body, **given, "prompt": prompt, "stream": True}
            rest = chunks_of((await there.post("/v1/completions", json=again)).text)
            ids = [i for chunk in rest for i in chunk["choices"][0]["token_ids"]]
            assert ids == [i for chunk in mine for i in chunk["choices"][0]["token_ids"]][2:]
        given = {"resume_token": chunks[0]["resume_token"]}
        refusal = error_of(await there.post("/v1/completions", json={**body, **given}))
        assert refusal == (
            400,
            "resume_token",
            "resume_token is 'beside 2 prompts'; allowed: beside one prompt: each has a token of its own",
        )


async def test_a_whole_answer_can_be_had_again_but_not_the_rest_of_one() -> None:
    async with two_routers(TEXT, tokens_at_once=1) as (here, there):
        body = {"prompt": "Hi", "max_tokens": 99}
        response = await here.post("/v1/completions", json={**body, "stream": True})
        token = response.headers["x-resume-token"]
        again = await there.post("/v1/completions", json={**body, "resume_token": token})
        assert again.json()["choices"][0]["text"] == TEXT
        wrong = {**body, "resume_token": token, "num_received_tokens": 3}
        assert error_of(await there.post("/v1/completions", json=wrong)) == (
            400,
            "num_received_tokens",
            "num_received_tokens is 3; allowed: zeros, unless stream is true: other answers are whole",
        )
        for change, field in (
            ({"resume_token": "x"}, "resume_token"),
            ({"prompt": "Ho"}, "resume_token"),
            ({"temperature": 0.0}, "resume_token"),
            ({"num_received_tokens": [1, 1]}, "num_received_tokens"),
            ({"num_received_tokens": 100}, "num_received_tokens"),
            ({"num_received_tokens": -1}, "num_received_tokens"),
            ({"resume_token": None}, "num_received_tokens"),
        ):
            asked = {**wrong, "stream": True, **change}
            status, param, _ = error_of(await there.post("/v1/completions", json=asked))
            assert (status, param) == (400, field), change


async def test_the_first_chunk_reads_as_any_other() -> None:
    """The field is beside those that clients know, and is a text."""
    async with two_routers("Hi", tokens_at_once=1) as (here, _):
        response = await here.post("/v1/chat/completions", json={"messages": HELLO, "stream": True})
        first, second = chunks_of(response.text)[:2]
        assert first.keys() - second.keys() == {"resume_token"}
        assert len(json.dumps(first["resume_token"])) < 300
