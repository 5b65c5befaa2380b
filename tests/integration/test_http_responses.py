"""/v1/responses, as OpenAI's own client asks and reads, through a real router."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pydantic
import pytest

from baton_core.errors import ErrorCode
from baton_core.sessions.router_messages import Failed, RequestSpec
from baton_router.process.http_settings import HttpSettings, ResponseStoreLimits
from tests.integration.chat_client import Chat, chatting
from tests.integration.golden_events import check_golden
from tests.integration.http_router import error_of, http_cluster
from tests.integration.router_cluster import ANSWER, TOKENIZER
from tests.integration.scripted_worker import ScriptedWorker, until

WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "Say the weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": True,
}
CALL = 'I look. <tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
AGENTS = {"type": "namespace", "name": "agents", "description": "Agents.", "tools": [WEATHER]}
LIST = {**WEATHER, "parameters": {"type": "array"}}
NOT = [{"type": "x"}, {**AGENTS, "tools": [{**WEATHER, "parameters": {"not": {}}}]}]
PARSERS: dict[str, Any] = {
    "enable_auto_tool_choice": True,
    "tool_call_parser": "hermes",
    "reasoning_parser": "qwen3",
}
LISTING: Any = {"order": "asc", "limit": 2, "include": ["message.input_image.image_url"]}
LOGPROBS: Any = ["message.output_text.logprobs"]


class City(pydantic.BaseModel):
    """A city."""

    name: str


@asynccontextmanager
async def responding(text: str, **http: Any) -> AsyncIterator[tuple[openai.AsyncOpenAI, Chat]]:
    """A router whose worker answers with `text`, and OpenAI's client of it."""
    async with chatting(text, **http) as chat:
        url = f"{str(chat.client.base_url).rstrip('/')}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            yield client, chat


async def test_a_response_is_made_stored_and_continued() -> None:
    async with responding("Good day.") as (client, chat):
        settings: dict[str, Any] = {"temperature": 0.5, "max_output_tokens": 50, "metadata": {"a": "b"}}
        made = await client.responses.create(
            model="tiny", input="Hello!", instructions="Be brief.", user="u", **settings
        )
        assert (made.object, made.status, made.output_text) == ("response", "completed", "Good day.")
        assert (made.temperature, made.max_output_tokens, made.metadata) == (0.5, 50, {"a": "b"})
        params = chat.worker.spec.params
        assert (params.temperature, params.max_tokens) == (0.5, 50)
        assert made.usage is not None
        assert made.usage.input_tokens == len(chat.worker.spec.prompt_token_ids)
        num_tokens = len(TOKENIZER.encode("Good day.", add_special_tokens=False)) + 1
        assert made.usage.output_tokens == num_tokens
        assert made.usage.total_tokens == made.usage.input_tokens + num_tokens
        assert "Be brief." in await chat.prompt()
        assert await client.responses.retrieve(made.id, include=LOGPROBS) == made

        follow: Any = [{"role": "user", "content": [{"type": "input_text", "text": "And now?"}]}]
        again = await client.responses.create(input=follow, previous_response_id=made.id)
        prompt = await chat.prompt()
        places = [prompt.index(text) for text in ("Hello!", "Good day.", "And now?")]
        assert places == sorted(places)
        assert "Be brief." not in prompt, "instructions are of one response"
        counted = await client.responses.input_tokens.count(input=follow, previous_response_id=made.id)
        assert counted.object == "response.input_tokens"
        assert counted.input_tokens == len(chat.worker.spec.prompt_token_ids)
        await client.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError, match="previous_response_id is"):
            await client.responses.create(input="x", previous_response_id=made.id)
        items = [item async for item in client.responses.input_items.list(again.id, **LISTING)]
        assert [item.type for item in items] == ["message"] * 3
        assert len({item.id for item in items}) == 3
        contents: list[Any] = [item.content[0] for item in items if item.type == "message"]
        assert [content.text for content in contents] == ["Hello!", "Good day.", "And now?"]
        sent_again: Any = [{**each, "id": items[1].id} for each in follow * 2]
        again = await client.responses.create(input=sent_again, previous_response_id=again.id)
        items = [item async for item in client.responses.input_items.list(again.id, **LISTING)]
        assert len(items) == len({item.id for item in items}) == 6

        unstored = await client.responses.create(input="x", store=False)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(unstored.id)
        short = await client.responses.create(input="x", max_output_tokens=2)
        assert short.status == "incomplete"
        assert short.incomplete_details is not None
        assert short.incomplete_details.reason == "max_output_tokens"


async def test_reasoning_text_and_calls_are_items_whole_and_streamed() -> None:
    async with responding("<think>Hm.</think>" + CALL, tokens_at_once=2, **PARSERS) as (client, chat):
        asked: dict[str, Any] = {"model": "tiny", "input": "Weather?", "tools": [WEATHER]}
        whole = await client.responses.create(**asked)
        async with client.responses.stream(**asked) as stream:
            streamed = await stream.get_final_response()
        for made in (whole, streamed):
            reasoning, message, call = made.output
            assert reasoning.type == "reasoning"
            assert reasoning.content is not None
            assert reasoning.content[0].text == "Hm."
            assert message.type == "message"
            assert made.output_text.strip() == "I look."
            assert call.type == "function_call"
            assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Rome"})
            assert made.usage is not None
            assert made.usage == whole.usage

        result = {"type": "function_call_output", "call_id": whole.output[2].call_id, "output": "31 degrees"}
        own: list[Any] = [{"role": "user", "content": "Weather?"}, *whole.output, result]
        stateless = await client.responses.create(input=own, tools=asked["tools"], store=False)
        prompt = await chat.prompt()
        assert stateless.usage is not None
        await client.responses.create(input=[result], tools=asked["tools"], previous_response_id=whole.id)
        assert await chat.prompt() == prompt
        places = [prompt.index(text) for text in ("Weather?", "I look.", "31 degrees")]
        assert places == sorted(places)


async def test_functions_of_a_namespace_are_called_by_both_names_and_tools_of_servers_are_skipped() -> None:
    async with responding(CALL.replace("weather", "agents__weather"), **PARSERS) as (client, _):
        tools: Any = [{"type": "web_search"}, AGENTS | {"tools": [WEATHER, {"type": "custom", "name": "p"}]}]
        asked: dict[str, Any] = {"model": "tiny", "input": "Weather?", "tools": tools, "stream": True}
        events: list[Any] = [event async for event in await client.responses.create(**asked)]
        calls = [event.item for event in events if event.type.startswith("response.output_item")]
        assert [(call.namespace, call.name) for call in calls[2:]] == [("agents", "weather")] * 2
        raw = await client.responses.with_raw_response.create(**asked | {"stream": False})
        assert raw.headers["x-baton-ignored"] == "tools[].web_search, tools[].tools[].custom"
        made: Any = raw.parse()
        (call,) = (item for item in made.output if item.type == "function_call")
        assert (call.namespace, call.name) == ("agents", "weather")
        assert [tool.model_dump(exclude_none=True) for tool in made.tools] == [AGENTS]


async def test_items_are_referred_to_by_their_ids() -> None:
    async with responding("<think>Hm.</think>" + CALL, **PARSERS) as (client, chat):
        asked: dict[str, Any] = {"input": "Weather?", "tools": [WEATHER]}
        made: Any = await client.responses.create(**asked)
        result = {"type": "function_call_output", "call_id": made.output[2].call_id, "output": "31 degrees"}
        user = {"role": "user", "content": "Weather?"}
        whole: list[Any] = [user, *made.output, result]
        await client.responses.create(input=whole, store=False)
        prompt = await chat.prompt()
        items: list[Any] = [{"type": "item_reference", "id": item.id} for item in made.output]
        again: Any = await client.responses.create(input=[user, *items, result])
        assert await chat.prompt() == prompt
        counted = await client.responses.input_tokens.count(input=[user, *items, result])
        assert counted.input_tokens == again.usage.input_tokens
        await client.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError, match=r"input\[0\]\.id is"):
            await client.responses.create(input=items)
        follow: Any = [{"type": "item_reference", "id": again.output[1].id}]
        await client.responses.create(input=follow)
        assert "I look." in await chat.prompt()


async def test_items_that_are_referred_to_are_no_larger_than_a_body() -> None:
    async with responding("Good day. " * 100, max_body_bytes=8192) as (client, _):
        made: Any = await client.responses.create(input="x")
        items: list[Any] = [{"type": "item_reference", "id": made.output[0].id}]
        await client.responses.input_tokens.count(input=items * 2)
        with pytest.raises(openai.APIStatusError, match="too large; allowed: at most 8192 bytes"):
            await client.responses.input_tokens.count(input=items * 20)


@pytest.mark.parametrize(
    ("name", "text", "fields"),
    [
        ("responses", "<think>Hm.</think>" + CALL, {"tools": [WEATHER]}),
        ("responses-incomplete", "Good day.", {"max_output_tokens": 2}),
    ],
)
async def test_the_events_of_a_stream_are_those_of_its_golden_file(
    name: str, text: str, fields: dict[str, Any]
) -> None:
    async with responding(text, **PARSERS) as (_, chat):
        body = {"input": "Hello!", "stream": True, **fields}
        response = await chat.client.post("/v1/responses", json=body)
        events = check_golden(name, response.text)
        assert "x-resume-token" not in response.headers, "the route reads none"
        assert [event["sequence_number"] for event in events] == list(range(len(events)))


async def test_formats_logprobs_and_tools_become_those_of_chats() -> None:
    async with responding('{"name": "Rome"}') as (client, chat):
        parsed = await client.responses.parse(model="tiny", input="A city.", text_format=City)
        assert parsed.output_parsed == City(name="Rome")
        async with client.responses.stream(model="tiny", input="A city.", text_format=City) as stream:
            types = [event.type.removeprefix("response.") async for event in stream]
            assert (await stream.get_final_response()).output_parsed == City(name="Rome")
        assert list(dict.fromkeys(types)) == [
            *("created", "in_progress", "output_item.added", "content_part.added", "output_text.delta"),
            *("output_text.done", "content_part.done", "output_item.done", "completed"),
        ]
        form = chat.worker.spec.params.structured_outputs
        assert form is not None
        assert json.loads(form.json or "")["properties"].keys() == {"name"}
        named: Any = {"type": "function", "name": "weather"}
        tools: Any = [WEATHER]
        called = await client.responses.create(input="x", tools=tools, tool_choice=named)
        (call,) = called.output
        assert call.type == "function_call"
        assert json.loads(call.arguments) == {"name": "Rome"}
        asked: dict[str, Any] = {"model": "tiny", "input": "x", "include": LOGPROBS, "top_logprobs": 2}
        asked["extra_body"] = {"include_reasoning": False}  # hides nothing where no parser finds reasoning
        whole = await client.responses.create(**asked)
        async with client.responses.stream(**asked) as stream:
            pieces: list[Any] = []
            async for event in stream:
                if event.type == "response.output_text.delta":
                    pieces += event.logprobs
                elif event.type == "response.output_text.done":
                    assert [one.model_dump() for one in pieces] == [
                        one.model_dump() for one in event.logprobs
                    ]
            streamed = await stream.get_final_response()
        for made in (whole, streamed):
            message = made.output[0]
            assert message.type == "message"
            part = message.content[0]
            assert part.type == "output_text"
            assert part.logprobs is not None
            assert "".join(each.token for each in part.logprobs[:-1]) == '{"name": "Rome"}'
            assert all(len(each.top_logprobs) == 2 for each in part.logprobs)
        assert len(pieces) == len(TOKENIZER.encode(part.text, add_special_tokens=False)) + 1


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"input": []}, "input is '0 items'; allowed: 1 to 4096"),
    ({"max_output_tokens": 0}, "max_output_tokens is 0"),
    ({"tools": [WEATHER], "tool_choice": {"type": "web_search"}}, "tool_choice.type is 'web_search'"),
    ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice is 'required'"),
    ({"tools": [{"type": "namespace", "name": "n", "tools": [WEATHER] * 1024}] * 2}, "tools is '2048 func"),
    ({"tools": [{"type": "namespace", "tools": [WEATHER]}]}, "tools[0].name is ''; allowed: the name of a"),
    ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "b"}}, "tool_choice.name is 'b'"),
    ({"tools": [LIST], "tool_choice": "required"}, "tools[0].parameters.type is 'array'; allowed: object"),
    (
        {"tools": [{"type": "x"}, {**AGENTS, "tools": [LIST]}], "tool_choice": "required"},
        "tools[1].tools[0].parameters.type is 'array'; allowed: object",
    ),
    ({"tools": NOT, "tool_choice": "required"}, "tools[1].tools[0].parameters is {'not': {}"),
    ({"prompt": {"id": "p"}}, "prompt is"),
    ({"conversation": "c"}, "conversation is 'c'"),
    ({"max_tool_calls": 2}, "max_tool_calls is 2"),
    ({"top_logprobs": 2}, "top_logprobs is 2; allowed: nothing, unless include has"),
    ({"background": True, "store": False}, "beside --router-processes over 1 there is --redis"),
    ({"input": [{"type": "compaction", "id": "x"}]}, "'compaction'; allowed: the items that it stands for"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        "input[0].content[0].type is 'input_image'; allowed: input_text, output_text, text, refusal: this",
    ),
    ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id is null"),
]


async def test_what_cannot_be_had_is_refused_by_its_own_name() -> None:
    async with responding("No.") as (_, chat):
        for fields, said in REFUSED:
            response = await chat.client.post("/v1/responses", json={"input": "x", **fields})
            assert response.status_code == 400, fields
            assert said in response.json()["error"]["message"]
        assert not chat.worker.commands


async def test_a_response_in_the_background_is_fetched_by_its_id() -> None:
    async with responding("Good day.") as (client, _):
        made = await client.responses.create(input="x", background=True)
        assert (made.status, made.output) == ("in_progress", [])
        while (done := await client.responses.retrieve(made.id)).status == "in_progress":
            pass
        assert (done.status, done.output_text) == ("completed", "Good day.")
        assert (await client.responses.cancel(made.id)).status == "completed"
        plain = await client.responses.create(input="x")
        with pytest.raises(openai.BadRequestError, match="background: true"):
            await client.responses.cancel(plain.id)


async def test_a_response_belongs_to_its_tenant_and_is_kept_within_bounds() -> None:
    settings = HttpSettings(
        api_keys=("first", "second"), stored_responses=ResponseStoreLimits(num_responses=2)
    )
    worker = ScriptedWorker("w1", answers=[ANSWER])
    async with http_cluster(worker, http=settings) as client:
        first, second = ({"authorization": f"Bearer {key}"} for key in settings.api_keys)

        async def create(**body: Any) -> str:
            fields = {"input": "x", "max_output_tokens": 3, **body}
            reply = await client.post("/v1/responses", json=fields, headers=first)
            return str(reply.json()["id"])

        path = f"/v1/responses/{await create()}"
        made = await client.get(path, headers=first)
        assert made.status_code == 200
        items = [{"type": "item_reference", "id": made.json()["output"][0]["id"]}]
        for headers, status in ((first, 200), (second, 404)):
            counted = await client.post(
                f"{path.rpartition('/')[0]}/input_tokens", json={"input": items}, headers=headers
            )
            assert counted.status_code == status
        for method, of in (("GET", path), ("DELETE", path), ("POST", f"{path}/cancel")):
            refused = await client.request(method, of, headers=second)
            assert (refused.status_code, refused.json()["error"]["code"]) == (404, "not_found")
        assert (await client.get(f"{path}?stream=true", headers=first)).status_code == 400
        assert (await client.get(f"{path}/input_items?limit=0", headers=first)).status_code == 400
        await create(store=False)
        assert (await client.get(path, headers=first)).status_code == 200
        await create()
        await create()
        assert (await client.get(path, headers=first)).status_code == 404

        path = f"/v1/responses/{await create(background=True, max_output_tokens=None)}"  # it never ends
        assert (await client.get(path, headers=first)).json()["status"] == "in_progress"
        cancelled = await client.post(f"{path}/cancel", headers=first)
        assert cancelled.json()["status"] == "cancelled"
        follow = {"input": "x", "previous_response_id": cancelled.json()["id"]}
        refused = await client.post("/v1/responses", json=follow, headers=first)
        allowed = "allowed: the id of a response that is completed or incomplete; this one is cancelled"
        assert refused.json()["error"]["message"].endswith(allowed)
        await until(lambda: worker.num_cancels(path.partition("resp_")[2]) == 1)
        assert (await client.get(path, headers=first)).json()["status"] == "cancelled"
        path = f"/v1/responses/{await create(background=True, max_output_tokens=None)}"
        assert (await client.delete(path, headers=first)).json()["deleted"]
        await until(lambda: worker.num_cancels(path.partition("resp_")[2]) == 1)


async def test_a_stored_response_stays_when_a_request_of_the_same_name_comes() -> None:
    worker = ScriptedWorker("w1", answers=[ANSWER])
    async with http_cluster(worker) as client:

        async def create(**fields: Any) -> httpx.Response:
            body = {"input": "x", "max_output_tokens": 3, **fields}
            return await client.post("/v1/responses", json=body, headers={"x-request-id": "mine"})

        names = [(await create()).json()["id"] for _ in range(2)]
        assert len(set(names)) == 2
        for name in names:
            assert (await client.get(f"/v1/responses/{name}")).json()["id"] == name
            assert (await client.get(f"/debug/requests/{name}")).json()["request_id"] == "mine"
        own = await create(request_id="ours")
        assert own.json()["id"] == "resp_ours"
        assert (await client.get("/debug/requests/resp_ours")).json()["request_id"] == "ours"
        again = await create(request_id="ours")
        assert error_of(again)[:2] == (400, "request_id")
        assert (await client.get("/v1/responses/resp_ours")).json() == own.json()


class FailingWorker(ScriptedWorker):
    """Fails each request after its first token."""

    def _decode(self, spec: RequestSpec, *args: Any, **kwargs: Any) -> None:
        failed = Failed(request_id=spec.request_id, code=ErrorCode.UNAVAILABLE, message="no more blocks")
        self.client.send(self.router_id, failed)


async def test_a_failure_is_an_event_a_status_or_a_state() -> None:
    async with http_cluster(FailingWorker("w1", answers=[ANSWER])) as client:
        streamed = await client.post("/v1/responses", json={"input": "x", "stream": True})
        *_, last, rest = streamed.text.split("\n\n")
        name, line = last.split("\n")
        failed = json.loads(line.removeprefix("data: "))["response"]
        assert (name, rest) == ("event: response.failed", "")
        assert failed["status"] == "failed"
        assert failed["error"]["code"] == "server_error"
        assert "no more blocks" in failed["error"]["message"]
        assert failed["error"]["message"].endswith(" (unavailable)")
        kept = await client.get(f"/v1/responses/{failed['id']}")
        assert kept.json() == failed
        follow = {"input": "x", "previous_response_id": failed["id"]}
        refused = await client.post("/v1/responses", json=follow)
        assert refused.json()["error"]["param"] == "previous_response_id"

        whole = await client.post("/v1/responses", json={"input": "x", "request_id": "r"})
        assert (whole.status_code, whole.json()["error"]["code"]) == (503, "unavailable")
        assert (await client.get("/v1/responses/resp_r")).status_code == 404
        begun = await client.post("/v1/responses", json={"input": "x", "background": True})
        path = f"/v1/responses/{begun.json()['id']}"
        while (state := (await client.get(path)).json())["status"] == "in_progress":
            pass
        assert (state["status"], state["error"]) == ("failed", failed["error"])
