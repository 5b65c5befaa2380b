"""POST /v1/chat/completions through a real router; only what is generated is scripted."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from tests.integration.chat_client import EOS, HELLO, WEATHER, Chat, ChattyWorker, chatting, joined
from tests.integration.router_cluster import TOKENIZER, serving


async def test_an_answer_has_openais_shape() -> None:
    async with chatting("The fox jumps.") as chat:
        answer = await chat.ask(model="tiny")
        usage = answer["usage"]
        assert answer["id"].startswith("chatcmpl-")
        assert answer["object"] == "chat.completion"
        assert (answer["model"], answer["service_tier"]) == ("tiny", None)
        assert answer["system_fingerprint"]
        assert answer["created"] > 1_700_000_000
        assert answer["choices"] == [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "The fox jumps.",
                    "refusal": None,
                    "annotations": None,
                    "audio": None,
                    "function_call": None,
                    "reasoning": None,
                    "reasoning_content": None,
                },
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
                "token_ids": None,
            }
        ]
        nulls = ("prompt_logprobs", "prompt_token_ids", "kv_transfer_params")
        assert [answer[name] for name in nulls] == [None] * 3
        assert usage["prompt_tokens_details"] == {"cached_tokens": 3}
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert "timings" not in answer
        assert chat.worker.spec.params.max_tokens == 4096 - len(chat.worker.spec.prompt_token_ids)


async def test_a_stream_tells_the_role_then_the_text_then_the_end_then_the_usage() -> None:
    async with chatting("The fox jumps.") as chat:
        options = {"include_usage": True}
        first, *middle, usage = await chat.stream(stream_options=options, include_timings=True)
        assert first["object"] == "chat.completion.chunk"
        assert first["id"].startswith("chatcmpl-")
        assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert first["usage"] is None
        texts = [chunk["choices"][0]["delta"].get("content", "") for chunk in middle]
        assert "".join(texts) == "The fox jumps."
        assert len(texts) > 3
        assert [chunk["choices"][0]["finish_reason"] for chunk in middle[:-1]] == [None] * (len(middle) - 1)
        assert middle[-1]["choices"][0]["finish_reason"] == "stop"
        assert middle[-1]["choices"][0]["stop_reason"] is None
        assert usage["choices"] == []
        assert usage["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
        assert usage["timings"]["queue_s"] == 0.5
        assert usage["timings"]["decode_worker"] == "w1"
        assert usage["usage"]["completion_tokens"] == len(TOKENIZER.encode("The fox jumps.")) + 1


async def test_usage_is_told_all_along_when_asked_for() -> None:
    async with chatting("The fox.") as chat:
        options = {"include_usage": False, "continuous_usage_stats": True}
        chunks = await chat.stream(stream_options=options)
        counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
        assert counts[0] == 0
        assert counts == sorted(counts)
        assert all(chunk["choices"] for chunk in chunks)


@pytest.mark.parametrize("tokens_at_once", [1, 5])
async def test_each_sequence_is_a_choice(tokens_at_once: int) -> None:
    texts = ("One fish.", "Two fish, red fish.", "你好")
    async with chatting(*texts, tokens_at_once=tokens_at_once) as chat:
        answer = await chat.ask(n=3)
        assert [choice["message"]["content"] for choice in answer["choices"]] == list(texts)
        chunks = await chat.stream(n=3)
        roles = [chunk["choices"][0] for chunk in chunks[:3]]
        assert [(role["index"], role["delta"]["role"]) for role in roles] == [
            (index, "assistant") for index in range(3)
        ]
        assert [joined(chunks, index)["content"] for index in range(3)] == list(texts)


async def test_log_probabilities_are_of_every_token() -> None:
    async with chatting("Hi you") as chat:
        answer = await chat.ask(logprobs=True, top_logprobs=2, return_token_ids=True)
        (choice,) = answer["choices"]
        content = choice["logprobs"]["content"]
        ids = TOKENIZER.encode("Hi you", add_special_tokens=False)
        assert choice["token_ids"] == [*ids, EOS]
        assert len(content) == len(ids) + 1
        assert "".join(entry["token"] for entry in content[:-1]) == "Hi you"
        assert content[0]["logprob"] == -9999.0
        assert bytes(content[0]["bytes"]).decode() == content[0]["token"]
        assert [top["logprob"] for top in content[0]["top_logprobs"]] == [-0.5, -1.5]
        named = await chat.ask(logprobs=True, return_tokens_as_token_ids=True)
        names = [entry["token"] for entry in named["choices"][0]["logprobs"]["content"]]
        assert names == [f"token_id:{token_id}" for token_id in (*ids, EOS)]
        chunks = await chat.stream(logprobs=True, top_logprobs=2, return_token_ids=True)
        parts = [choice for chunk in chunks for choice in chunk["choices"]]
        streamed = [entry for part in parts if part["logprobs"] for entry in part["logprobs"]["content"]]
        assert streamed == content
        assert [i for part in parts for i in part.get("token_ids", ())] == choice["token_ids"]
        assert chunks[0]["prompt_token_ids"] == answer["prompt_token_ids"]


async def test_log_probabilities_of_the_prompt_come_once() -> None:
    async with chatting("Hi") as chat:
        answer = await chat.ask(prompt_logprobs=1, return_token_ids=True)
        entries = answer["prompt_logprobs"]
        assert entries[0] is None
        assert len(entries) == answer["usage"]["prompt_tokens"]
        own = entries[1][str(answer["prompt_token_ids"][1])]
        assert own["rank"] == 9
        assert own["logprob"] == -9999.0
        chunks = await chat.stream(prompt_logprobs=1)
        assert chunks[0]["prompt_logprobs"] == entries
        assert all("prompt_logprobs" not in chunk for chunk in chunks[1:])


async def test_an_answer_may_go_on_with_the_last_message_and_repeat_it() -> None:
    messages = [*HELLO, {"role": "assistant", "content": [{"type": "text", "text": "Once upon"}]}]
    async with chatting(" a time") as chat:
        fields = {"messages": messages, "continue_final_message": True, "echo": True}
        (choice,) = (await chat.ask(**fields))["choices"]
        assert choice["message"]["content"] == "Once upon a time"
        assert joined(await chat.stream(**fields))["content"] == "Once upon a time"
        assert (await chat.prompt()).endswith("Once upon")
        refused = [*HELLO, {"role": "assistant", "content": [{"type": "refusal", "refusal": "No"}, "!"]}]
        (choice,) = (await chat.ask(**{**fields, "messages": refused}))["choices"]
        assert choice["message"]["content"] == "No\n! a time"
        await chat.ask(messages=messages, add_generation_prompt=False)
        assert "Once upon" in await chat.prompt()


async def test_tools_efforts_and_arguments_reach_the_template() -> None:
    template = (
        "{{ messages | tojson }}|{{ tools | tojson }}|{{ documents | tojson }}|{{ reasoning_effort }}"
        "|{{ enable_thinking }}|{{ tone }}"
    )
    called = {
        "id": "c1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Rome"}'},
    }
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}], "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": [called], "reasoning_content": "Hm."},
        {"role": "tool", "content": "sunny", "tool_call_id": "c1"},
    ]
    async with chatting("ok") as chat:
        refused = await chat.refusal(chat_template=template)
        assert refused["param"] == "chat_template"
        assert "--trust-request-chat-template" in refused["message"]

    worker = ChattyWorker("w1", answers=[(5, EOS)])
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(chat_template=template))
        await stack.enter_async_context(worker.joined(server.grpc_port))
        url = f"http://127.0.0.1:{server.http_port}"
        chat = Chat(await stack.enter_async_context(httpx.AsyncClient(base_url=url, verify=False)), worker)
        documents = [{"title": "t", "text": "x"}]
        await chat.ask(
            messages=messages,
            tools=[WEATHER],
            tool_choice="none",
            documents=documents,
            reasoning_effort="low",
            chat_template_kwargs={"tone": "dry"},
        )
        shown, tools, papers, effort, thinks, tone = (await chat.prompt()).split("|")
        read = json.loads(shown)
        assert read[2]["tool_calls"][0]["function"]["arguments"] == {"city": "Rome"}
        assert read[2]["reasoning_content"] == "Hm."
        assert read[2]["content"] == ""
        assert read[1]["name"] == "ann"
        assert read[3]["tool_call_id"] == "c1"
        assert json.loads(tools) == [WEATHER]
        assert json.loads(papers) == documents
        assert (effort, thinks, tone) == ("low", "True", "dry")


NO_OBJECT = {"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"messages": []}, "messages", "length"),
    ({"messages": [*HELLO, {"role": "", "content": ""}]}, "messages[1].role", "length"),
    ({"messages": [*HELLO, {"content": ""}]}, "messages[1].role", "missing"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "messages[0].content[0].type",
        "text",
    ),
    (
        {"messages": [{"role": "user", "content": "", "tool_calls": [{"function": {"name": "f"}}]}]},
        "messages[0].tool_calls",
        "assistant",
    ),
    ({"messages": HELLO * 4097}, "messages", "4096"),
    ({"tools": [WEATHER]}, "tool_choice", "--enable-auto-tool-choice"),
    ({"tool_choice": "required"}, "tool_choice", "no tools"),
    ({"tool_choice": "required", "tools": []}, "tool_choice", "no tools"),
    (
        {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "x"}}},
        "tool_choice.function.name",
        "weather",
    ),
    (
        {"tools": [WEATHER, NO_OBJECT], "tool_choice": "required"},
        "tools[1].function.parameters.type",
        "is 'string'; allowed: object",
    ),
    (
        {"tools": [WEATHER, NO_OBJECT], "tool_choice": {"type": "function", "function": {"name": "f"}}},
        "tools[1].function.parameters.type",
        "is 'string'; allowed: object",
    ),
    ({"tools": [WEATHER], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.type", "of this name"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "xml"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        "response_format.json_schema.schema",
        "schema",
    ),
    ({"top_logprobs": 3}, "top_logprobs", "logprobs is true"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "20"),
    ({"max_completion_tokens": 0}, "max_completion_tokens", "integer"),
    ({"temperature": -1}, "temperature", "from 0"),
    ({"functions": [{}]}, "functions", "tools"),
    ({"modalities": ["audio"]}, "modalities", "text"),
    ({"web_search_options": {}}, "web_search_options", "nowhere"),
    ({"kv_transfer_params": {"do_remote_prefill": True}}, "kv_transfer_params", "router"),
    ({"best_of": 2}, "best_of", "value of n"),
    ({"use_beam_search": "true"}, "use_beam_search", "false"),
    ({"truncation_side": "right"}, "truncation_side", "left"),
    (
        {"guided_json": {}, "guided_whitespace_pattern": " "},
        "guided_whitespace_pattern",
        "disable_any_whitespace",
    ),
    ({"guided_regex": "("}, "guided_regex", "group"),
    ({"guided_regex": "a", "guided_choice": ["b"]}, "structured_outputs", "exactly one"),
    (
        {"guided_regex": "a", "structured_outputs": {"regex": "b"}},
        "structured_outputs.regex",
        "one constraint",
    ),
    (
        {
            "guided_json": {},
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"a": 1}}},
        },
        "response_format.json_schema.schema",
        "given twice",
    ),
    ({"stream_options": {"include_usage": True}}, "stream_options", "stream"),
    ({"thinking_token_budget": 5}, "thinking_token_budget", "--reasoning-parser"),
    ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message", "alone"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "names"),
]


async def test_what_is_wrong_is_refused_by_name() -> None:
    async with chatting("ok") as chat:
        for body, param, words in REFUSED:
            error = await chat.refusal(**body)
            assert error["param"] == param, body
            assert words in error["message"], body
        long = await chat.refusal(messages=[{"role": "user", "content": "a " * 5000}])
        assert long["param"] == "messages"
        assert "4095 tokens" in long["message"]
        assert chat.worker.commands == []


@pytest.mark.parametrize("defs", [{}, {"$defs": {"b": {"type": "string"}}}])
async def test_of_tools_with_forced_calls_the_wrong_one_is_named(defs: dict[str, Any]) -> None:
    within = {"b": {"$ref": "#/$defs/b"}} if defs else {}
    parameters = {"properties": {"a": {"type": "strange"}, **within}, **defs}
    function = {"name": "f", "parameters": parameters}
    twice = {"type": "function", "function": {"name": "twice", "parameters": {"type": "object"}}}
    tools = [WEATHER, twice, {"type": "function", "function": function}]
    one = {"type": "function", "function": {"name": "f"}}
    some = {"mode": "required", "tools": [one, {"type": "function", "function": {"name": "twice"}}]}
    async with chatting("ok") as chat:
        for choice in ("required", one, {"type": "allowed_tools", "allowed_tools": some}):
            error = await chat.refusal(tools=tools, tool_choice=choice)
            assert error["param"] == "tools[2].function.parameters", choice
            assert error["message"].endswith("what llguidance can read (Invalid type: strange)")
            assert error["message"].startswith("tools[2].function.parameters is {")


async def test_fields_that_ask_for_nothing_are_taken() -> None:
    async with chatting("ok") as chat:
        await chat.ask(
            modalities=["text"],
            service_tier="flex",
            store=True,
            metadata={"a": 1},
            user="ann",
            functions=[],
            function_call="auto",
            prediction={"type": "content", "content": "x"},
            verbosity="low",
            prompt_cache_retention="24h",
            mm_processor_kwargs={"a": 1},
            kv_transfer_params={"do_remote_decode": False, "remote_host": None},
            best_of=1,
            length_penalty=2,
            n=None,
            response_format={"type": "text"},
            tool_choice="none",
            stream_options=None,
        )


async def test_tokenize_reads_the_same_conversation() -> None:
    async with chatting("ok") as chat:
        messages = [{"role": "developer", "content": "Be kind."}, *HELLO]
        answer = await chat.ask(messages=messages, return_token_ids=True)
        reply = await chat.client.post("/tokenize", json={"messages": messages})
        assert reply.json()["tokens"] == answer["prompt_token_ids"]
        assert "Be kind." in await chat.prompt()
