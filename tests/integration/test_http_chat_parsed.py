"""Calls of tools and thoughts in answers of /v1/chat/completions, through a real router."""

from __future__ import annotations

import json
import shutil
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from baton_router.process.http_settings import HttpSettings
from tests.integration.chat_client import CLOCK, EOS, WEATHER, Chat, ChattyWorker, calls_of, chatting, joined
from tests.integration.router_cluster import MODEL, TOKENIZER, serving

HERMES = 'I look. <tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
SECOND = '\n<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
TWO_CALLS = [("weather", {"city": "Rome"}), ("clock", {})]


@pytest.mark.parametrize(
    ("parser", "text", "content"),
    [
        ("hermes", HERMES + SECOND, "I look. "),
        ("qwen3", HERMES + SECOND, "I look. "),
        (
            "llama3_json",
            '{"name": "weather", "parameters": {"city": "Rome"}}; {"name": "clock", "parameters": {}}',
            None,
        ),
        (
            "mistral",
            '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Rome"}}, '
            '{"name": "clock", "arguments": {}}]',
            None,
        ),
        ("pythonic", '[weather(city="Rome"), clock()]', None),
        (
            "qwen3_coder",
            "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>"
            "\n<tool_call>\n<function=clock>\n</function>\n</tool_call>",
            None,
        ),
    ],
)
async def test_calls_come_out_streamed_as_they_do_at_once(
    parser: str, text: str, content: str | None
) -> None:
    flags = {"enable_auto_tool_choice": True, "tool_call_parser": parser}
    async with chatting(text, tokens_at_once=2, **flags) as chat:
        (choice,) = (await chat.ask(tools=[WEATHER, CLOCK]))["choices"]
        streamed = joined(await chat.stream(tools=[WEATHER, CLOCK]))
        for message in (choice["message"], streamed):
            assert calls_of(message) == TWO_CALLS
            assert message["content"] == content
            ids = [call["id"] for call in message["tool_calls"]]
            assert len(set(ids)) == 2
            assert all(ids)
        assert choice["finish_reason"] == streamed["finish_reason"] == "tool_calls"


async def test_one_call_alone_comes_through_where_calls_may_not_be_parallel() -> None:
    flags = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
    async with chatting(HERMES + SECOND, **flags) as chat:
        fields = {"tools": [WEATHER, CLOCK], "parallel_tool_calls": False}
        (choice,) = (await chat.ask(**fields))["choices"]
        assert calls_of(choice["message"]) == calls_of(joined(await chat.stream(**fields))) == TWO_CALLS[:1]
        await chat.ask(tools=[WEATHER], tool_choice="required", parallel_tool_calls=False)
        form = chat.worker.spec.params.structured_outputs
        assert form is not None
        assert form.json is not None
        assert json.loads(form.json)["maxItems"] == 1


async def test_no_tool_is_called_where_the_request_says_none() -> None:
    flags = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
    async with chatting(HERMES, **flags) as chat:
        (choice,) = (await chat.ask(tools=[WEATHER], tool_choice="none"))["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == (HERMES, "stop")


async def test_a_required_call_is_plain_json_in_a_form_that_is_enforced() -> None:
    text = '[{"name": "weather", "parameters": {"city": "Rome"}}, {"name": "clock", "parameters": {}}]'
    async with chatting(text) as chat:
        fields = {"tools": [WEATHER, CLOCK], "tool_choice": "required"}
        (choice,) = (await chat.ask(**fields))["choices"]
        streamed = joined(await chat.stream(**fields))
        for message in (choice["message"], streamed):
            assert calls_of(message) == TWO_CALLS
            assert message["content"] is None
        assert choice["finish_reason"] == streamed["finish_reason"] == "tool_calls"
        form = chat.worker.spec.params.structured_outputs
        assert form is not None
        assert form.json is not None
        names = [call["properties"]["name"]["enum"] for call in json.loads(form.json)["items"]["anyOf"]]
        assert names == [["weather"], ["clock"]]


async def test_a_required_call_that_max_tokens_cut_off_leaves_no_content() -> None:
    async with chatting('[{"name": "weather", "param') as chat:
        fields = {"tools": [WEATHER], "tool_choice": "required"}
        (choice,) = (await chat.ask(**fields))["choices"]
        streamed = joined(await chat.stream(**fields))
        assert not choice["message"]["content"]
        assert not streamed["content"]
        as_response = {"tools": [{"type": "function", **WEATHER["function"]}], "tool_choice": "required"}
        response = await chat.client.post("/v1/responses", json={"input": "x", **as_response})
        assert "param" not in json.dumps(response.json()["output"])


async def test_a_named_call_is_the_object_of_its_arguments_and_ends_with_stop() -> None:
    async with chatting('{"city": "Rome"}') as chat:
        choose = {"type": "function", "function": {"name": "weather"}}
        fields = {"tools": [CLOCK, WEATHER], "tool_choice": choose}
        (choice,) = (await chat.ask(**fields))["choices"]
        streamed = joined(await chat.stream(**fields))
        for message in (choice["message"], streamed):
            assert calls_of(message) == [("weather", {"city": "Rome"})]
            assert message["content"] is None
        assert choice["finish_reason"] == streamed["finish_reason"] == "stop"
        form = chat.worker.spec.params.structured_outputs
        assert form is not None
        assert form.json is not None
        assert json.loads(form.json) == WEATHER["function"]["parameters"]  # type: ignore[index]


async def test_thoughts_and_answer_are_apart() -> None:
    text = "<think>Hmm, a fox.</think>It jumps."
    async with chatting(text, tokens_at_once=3, reasoning_parser="qwen3") as chat:
        (choice,) = (await chat.ask())["choices"]
        streamed = joined(await chat.stream())
        for message in (choice["message"], streamed):
            assert message["reasoning_content"] == message["reasoning"] == "Hmm, a fox."
            assert message["content"] == "It jumps."
        answer = await chat.ask(include_reasoning=False, logprobs=True, return_token_ids=True)
        message = answer["choices"][0]["message"]
        assert (message["content"], message["reasoning_content"]) == ("It jumps.", None)
        assert answer["choices"][0]["logprobs"] is None
        assert answer["choices"][0]["token_ids"] is None
        chunks = await chat.stream(include_reasoning=False)
        assert "reasoning" not in joined(chunks)
        assert joined(chunks)["content"] == "It jumps."


async def test_the_form_of_an_answer_begins_behind_the_thoughts() -> None:
    schema = WEATHER["function"]["parameters"]  # type: ignore[index]
    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": schema}}
    async with chatting('<think>Rome.</think>{"city": "Rome"}', reasoning_parser="qwen3") as chat:
        (choice,) = (await chat.ask(response_format=form))["choices"]
        assert json.loads(choice["message"]["content"]) == {"city": "Rome"}
        assert choice["message"]["reasoning"] == "Rome."
        spec = chat.worker.spec
        assert spec.params.structured_outputs is not None
        assert spec.thinking is not None
        assert TOKENIZER.decode(spec.thinking.end_token_ids) == "</think>"
        await chat.ask()
        assert chat.worker.spec.thinking is None


@pytest.mark.parametrize("limit", [{}, {"maxLength": 9}])
async def test_a_schema_may_have_a_name_that_is_no_uri_as_griptape_sends(limit: dict[str, int]) -> None:
    named = {"$id": "Output Format", "$schema": "http://json-schema.org/draft-07/schema#"}
    schema = {"type": "object", "properties": {"city": {"type": "string", **limit}}, "required": ["city"]}
    form = {"name": "Output", "strict": True, "schema": {**schema, **named, "additionalProperties": False}}
    async with chatting('{"city": "Rome"}') as chat:
        (choice,) = (await chat.ask(response_format={"type": "json_schema", "json_schema": form}))["choices"]
        assert json.loads(choice["message"]["content"]) == {"city": "Rome"}


async def test_markers_may_be_special_tokens_and_count_what_stands_between_them(tmp_path: Path) -> None:
    shutil.copytree(MODEL, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "tokenizer_config.json"
    extra = {"extra_special_tokens": ["<think>", "</think>"]}
    path.write_text(json.dumps(json.loads(path.read_text()) | extra))
    start, end = 4096, 4097
    texts = ("Hm, a fox.", "It jumps.")
    thought, words = (TOKENIZER.encode(text, add_special_tokens=False) for text in texts)
    worker = ChattyWorker("w1", answers=[(start, *thought, end, *words, EOS)])
    async with AsyncExitStack() as stack:
        settings = HttpSettings(reasoning_parser="qwen3")
        server = await stack.enter_async_context(serving(model=str(tmp_path), http=settings))
        await stack.enter_async_context(worker.joined(server.grpc_port))
        url = f"http://127.0.0.1:{server.http_port}"
        chat = Chat(await stack.enter_async_context(httpx.AsyncClient(base_url=url, verify=False)), worker)
        answer = await chat.ask()
        message, usage = answer["choices"][0]["message"], answer["usage"]
        assert (message["reasoning"], message["content"]) == ("Hm, a fox.", "It jumps.")
        assert usage["completion_tokens_details"] == {"reasoning_tokens": len(thought)}
        *_, last = await chat.stream(stream_options={"include_usage": True})
        assert last["usage"] == usage
