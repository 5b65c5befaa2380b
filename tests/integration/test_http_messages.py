"""POST /v1/messages, as Anthropic's own client asks and reads, through a real router."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from baton_router.process.http_settings import HttpSettings
from tests.integration.chat_client import Chat, chatting
from tests.integration.golden_events import check_golden
from tests.integration.http_router import http_cluster
from tests.integration.router_cluster import ANSWER, TOKENIZER
from tests.integration.scripted_worker import ScriptedWorker

WEATHER = {
    "name": "weather",
    "description": "Say the weather.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CALL = 'I look. <tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
PARSERS: dict[str, Any] = {
    "enable_auto_tool_choice": True,
    "tool_call_parser": "hermes",
    "reasoning_parser": "qwen3",
}
HELLO: list[Any] = [{"role": "user", "content": "Hello!"}]


@asynccontextmanager
async def messaging(text: str, **http: Any) -> AsyncIterator[tuple[Any, Chat]]:
    """A router whose worker answers with `text`, and Anthropic's client of it."""
    import anthropic  # seconds that every process of the suite would take

    async with chatting(text, **http) as chat:
        url = str(chat.client.base_url).rstrip("/")
        async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client:
            yield client, chat


async def ask(client: Any, **fields: Any) -> Any:
    return await client.messages.create(**{"model": "tiny", "max_tokens": 200, "messages": HELLO, **fields})


async def test_a_reply_is_a_message_with_its_usage() -> None:
    async with messaging("Good day.") as (client, chat):
        fields = {"temperature": 0.5, "top_k": 5, "metadata": {"user_id": "u"}}
        message = await ask(client, system="Be brief.", extra_body=fields)
        assert (message.type, message.role, message.model) == ("message", "assistant", "tiny")
        assert message.id == f"msg_{message._request_id}"
        assert [(part.type, part.text) for part in message.content] == [("text", "Good day.")]
        assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
        assert "citations" not in message.content[0].model_fields_set
        params = chat.worker.spec.params
        assert (params.temperature, params.top_k, params.max_tokens) == (0.5, 5, 200)
        usage = message.usage
        num_tokens = len(chat.worker.spec.prompt_token_ids)
        assert usage.input_tokens + usage.cache_read_input_tokens == num_tokens
        assert usage.output_tokens == len(TOKENIZER.encode("Good day.", add_special_tokens=False)) + 1
        assert "Be brief." in await chat.prompt()
        counted = await client.messages.count_tokens(model="tiny", system="Be brief.", messages=HELLO)
        assert counted.input_tokens == num_tokens


async def test_reasoning_text_and_calls_are_parts_whole_and_streamed() -> None:
    async with messaging("<think>Hm.</think>" + CALL, tokens_at_once=2, **PARSERS) as (client, _):
        whole = await ask(client, tools=[WEATHER])
        async with client.messages.stream(
            model="tiny", max_tokens=200, messages=HELLO, tools=[WEATHER]
        ) as stream:
            streamed = await stream.get_final_message()
        for message in (whole, streamed):
            thinking, text, call = message.content
            assert (thinking.type, thinking.thinking) == ("thinking", "Hm.")
            assert thinking.signature
            assert (text.type, text.text.strip()) == ("text", "I look.")
            assert (call.type, call.name, call.input) == ("tool_use", "weather", {"city": "Rome"})
            assert message.stop_reason == "tool_use"
        assert streamed.usage == whole.usage
        assert streamed.content[0].signature == whole.content[0].signature


async def test_a_qwen3_coder_call_without_its_end_has_its_arguments() -> None:
    text = "<tool_call><function=weather><parameter=city>Rome</parameter>"
    flags = {"enable_auto_tool_choice": True, "tool_call_parser": "qwen3_coder"}
    async with messaging(text, **flags) as (client, _):
        (call,) = (await ask(client, tools=[WEATHER])).content
        assert (call.name, call.input) == ("weather", {"city": "Rome"})


async def test_a_required_call_that_max_tokens_cut_off_leaves_no_text() -> None:
    async with messaging('[{"name": "weather", "param') as (client, _):
        (part,) = (await ask(client, tools=[WEATHER], tool_choice={"type": "any"})).content
        assert (part.type, part.text) == ("text", "")


@pytest.mark.parametrize(
    ("name", "text", "fields"),
    [
        ("messages", "<think>Hm.</think>" + CALL, {"tools": [WEATHER]}),
        ("messages-max-tokens", "Good day.", {"max_tokens": 2}),
    ],
)
async def test_the_events_of_a_stream_are_those_of_its_golden_file(
    name: str, text: str, fields: dict[str, Any]
) -> None:
    async with messaging(text, **PARSERS) as (_, chat):
        body = {"max_tokens": 200, "messages": HELLO, "stream": True, **fields}
        response = await chat.client.post("/v1/messages", json=body)
        check_golden(name, response.text)
        assert "x-resume-token" not in response.headers, "the route reads none"


async def test_a_conversation_with_calls_and_their_results_reaches_the_template() -> None:
    async with messaging("Sunny.", **PARSERS) as (client, chat):
        conversation = [
            {"role": "user", "content": [{"type": "text", "text": "And Rome?"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Rome"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": "31 degrees"},
                    {"type": "text", "text": "Well?", "cache_control": {"type": "ephemeral"}},
                ],
            },
        ]
        await ask(client, messages=conversation, tools=[WEATHER])
        prompt = await chat.prompt()
        places = [prompt.index(text) for text in ("And Rome?", "I look.", "31 degrees", "Well?")]
        assert places == sorted(places)
        continued = [*HELLO, {"role": "assistant", "content": "It is"}]
        await ask(client, messages=continued)
        assert (await chat.prompt()).endswith("It is")


async def test_how_a_reply_ends_is_said_as_anthropic_does() -> None:
    async with messaging("One, two, three.") as (client, _):
        short = await ask(client, max_tokens=2)
        assert short.stop_reason == "max_tokens"
        stopped = await ask(client, stop_sequences=["two"])
        assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "two")
        assert stopped.content[0].text == "One, "


async def test_settings_of_tools_and_thinking_become_those_of_chats() -> None:
    async with messaging("{}", **PARSERS) as (client, chat):
        await ask(client, tools=[WEATHER], tool_choice={"type": "tool", "name": "weather"})
        form = chat.worker.spec.params.structured_outputs
        assert form is not None
        assert json.loads(form.json or "") == WEATHER["input_schema"]
        await ask(client, thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=2000)
        budget = chat.worker.spec.thinking
        assert budget is not None
        assert budget.num_tokens == 1024
        schema = {"type": "object", "properties": {}, "additionalProperties": False}
        given = {"type": "json_schema", "schema": schema}
        for fields in ({"output_config": {"format": given}}, {"extra_body": {"output_format": given}}):
            await ask(client, **fields)
            form = chat.worker.spec.params.structured_outputs
            assert form is not None
            assert json.loads(form.json or "") == schema


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": 0}, "max_tokens is 0; allowed: a whole number over 0"),
    ({"extra_body": {"temperature": -1.0}}, "temperature is -1.0"),
    ({"stop_sequences": [""]}, "stop_sequences"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type is"),
    ({"thinking": {"type": "enabled", "budget_tokens": 5}}, "thinking.budget_tokens is 5"),
    ({"tool_choice": {"type": "any"}}, "tool_choice.type is 'any'; allowed: auto or none"),
    ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "b"}}, "tool_choice.name is 'b'"),
    (
        {"tools": [{"name": "b", "input_schema": {"type": "array"}}], "tool_choice": {"type": "any"}},
        "tools[0].input_schema.type is 'array'; allowed: object",
    ),
    (
        {
            "tools": [WEATHER, {"name": "b", "input_schema": {"type": "object", "not": {}}}],
            "tool_choice": {"type": "any"},
        },
        "tools[1].input_schema is {",
    ),
    ({"extra_body": {"mcp_servers": [{"url": "http://x"}]}}, "mcp_servers is"),
    ({"extra_body": {"compaction": {"type": "summarize"}}}, "compaction is"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        "messages[0].content[0].type is 'image'; allowed: text, tool_result, tool_reference: this router",
    ),
]


async def test_what_cannot_be_had_is_refused_by_its_own_name() -> None:
    from anthropic import BadRequestError

    async with messaging("No.") as (client, chat):
        for fields, said in REFUSED:
            with pytest.raises(BadRequestError) as caught:
                await ask(client, **fields)
            body: Any = caught.value.body
            assert body["type"] == "error"
            assert body["error"]["type"] == "invalid_request_error"
            assert said in body["error"]["message"]
            assert body["request_id"] == caught.value.request_id
        wrong = await chat.client.get("/v1/messages")
        assert (wrong.status_code, wrong.json()["error"]["type"]) == (405, "invalid_request_error")
        assert wrong.json()["request_id"] == wrong.headers["request-id"]
        absent = await chat.client.post("/v1/messages/batches", json={})
        assert (absent.status_code, absent.json()["error"]["type"]) == (404, "not_found_error")
        assert absent.json()["request_id"] == absent.headers["request-id"]
        assert not chat.worker.commands


async def test_a_refused_thread_and_a_prompt_too_long_are_known_to_the_clients() -> None:
    async with chatting("No.") as chat:
        body = {"max_tokens": 5, "messages": HELLO, "thread": {"type": "create"}}
        refused = (await chat.client.post("/v1/messages", json=body)).json()["error"]
        assert refused["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
        assert "details" not in (await chat.client.post("/v1/messages", json={"messages": 5})).json()["error"]
        body = {"max_tokens": 5, "messages": [{"role": "user", "content": "word " * 40_000}]}
        refused = await chat.client.post("/v1/messages", json=body)
        assert re.fullmatch(
            r"prompt is too long: \d{5} tokens > \d+ maximum", refused.json()["error"]["message"]
        )


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
async def test_edits_of_the_conversation_are_ignored_and_named_unless_they_keep_all(path: str) -> None:
    kept = {"type": "clear_thinking_20251015", "keep": "all"}
    body: dict[str, Any] = {"messages": HELLO} | ({} if "count" in path else {"max_tokens": 5})
    for is_strict in (False, True):
        async with chatting("No.", strict_fields=is_strict) as chat:
            reply = await chat.client.post(path, json={**body, "context_management": {"edits": [kept]}})
            assert (reply.status_code, "x-baton-ignored" in reply.headers) == (200, False)
            edits = [kept, {"type": "clear_tool_uses_20250919"}]
            reply = await chat.client.post(path, json={**body, "context_management": {"edits": edits}})
            if is_strict:
                assert "context_management.edits[1] is" in reply.json()["error"]["message"]
            else:
                assert reply.headers["x-baton-ignored"] == "context_management.edits[]"


async def test_a_key_may_come_as_anthropic_sends_it() -> None:
    keyed = HttpSettings(api_keys=("secret",))
    async with http_cluster(ScriptedWorker("w1", answers=[ANSWER]), http=keyed) as client:
        body = {"max_tokens": 5, "messages": HELLO}
        for headers in ({"x-api-key": "secret"}, {"authorization": "Bearer secret"}):
            response = await client.post("/v1/messages", json=body, headers=headers)
            assert response.status_code == 200
        refused = await client.post("/v1/messages", json=body, headers={"x-api-key": "other"})
        assert refused.status_code == 401
        assert refused.json()["error"]["type"] == "authentication_error"
