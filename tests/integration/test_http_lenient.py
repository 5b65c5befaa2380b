"""Requests as clients of other servers send them are answered, and what has no effect is named."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import pytest

from baton_router.process.http_settings import HttpSettings
from baton_router.requests.request_limits import RequestLimits
from tests.integration.chat_client import HELLO, chatting
from tests.integration.http_router import error_of, http_cluster
from tests.integration.router_cluster import ANSWER, MODEL, PROMPT, TOKENIZER
from tests.integration.scripted_worker import ScriptedWorker
from tests.integration.test_http_metrics import told

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
ASKED: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 3}


async def test_unknown_fields_are_named_in_a_header_and_counted_by_what_had_them() -> None:
    async with chatting("ok") as chat:
        messages = [HELLO[0] | {"foo": 1}]
        for fields in ({}, {"stream": True}):
            response = await chat.post(messages=messages, num_ctx=4096, **fields)
            assert response.status_code == 200
            assert response.headers["x-baton-ignored"] == "num_ctx, messages[].foo"
        assert "x-baton-ignored" not in (await chat.post()).headers
        wrong = await chat.post(chat_id="x", temperature=-1)
        assert (error_of(wrong)[:2], wrong.headers["x-baton-ignored"]) == ((400, "temperature"), "chat_id")
        counts = await told(chat.client, "baton_http_ignored_fields_total")
        assert counts == {("body",): 3, ("messages[]",): 2}


async def test_unknown_parameters_are_named_in_a_header_or_refused() -> None:
    path = "/debug/requests?limit=1&foo=1&a%0A=2"
    async with chatting("ok") as chat:
        lenient = await chat.client.get(path)
        assert (lenient.status_code, lenient.headers["x-baton-ignored"]) == (200, "?, foo")
        models = await chat.client.get("/v1/models?foo=1")
        assert (models.status_code, models.headers["x-baton-ignored"]) == (200, "foo")
        both = await chat.client.post(f"{CHAT}?beta=true", json={"messages": HELLO, "num_ctx": 1})
        assert (both.status_code, both.headers["x-baton-ignored"]) == (200, "beta, num_ctx")
    async with chatting("ok", strict_fields=True) as chat:
        status, param, message = error_of(await chat.client.get(path))
        assert (status, param) == (400, "query")
        assert "allowed: limit" in message
        refused = error_of(await chat.client.get("/v1/models?foo=1"))
        assert refused[2].startswith("query is 'foo=1'; allowed: none ")


async def test_a_compressed_body_is_refused_as_such() -> None:
    content = json.dumps({"messages": HELLO}).encode()
    async with chatting("ok") as chat:
        for encoding, body in (("gzip", gzip.compress(content)), ("deflate", zlib.compress(content))):
            headers = {"content-encoding": encoding, "content-type": "application/json"}
            refused = await chat.client.post(CHAT, content=body, headers=headers)
            assert refused.status_code == 415
            message = f"content-encoding is '{encoding}'; allowed: identity"
            assert refused.json()["error"]["message"].startswith(message)
        headers = {"content-encoding": "identity", "content-type": "application/json"}
        assert (await chat.client.post(CHAT, content=content, headers=headers)).status_code == 200


async def test_strict_fields_refuse_what_is_unknown_by_name() -> None:
    async with chatting("ok", strict_fields=True) as chat:
        for fields, param in (
            ({"num_ctx": 1}, "num_ctx"),
            ({"": 1}, "''"),
            ({"messages": [HELLO[0] | {"foo": 1}]}, "messages[0].foo"),
            ({"stream": True, "stream_options": {"include_usages": True}}, "stream_options.include_usages"),
        ):
            error = await chat.refusal(**fields)
            assert (error["param"], "is unknown" in error["message"]) == (param, True)
        assert (await chat.post(user="ann", store=True)).status_code == 200
        asked = {"input": "x", "tools": [{"type": "web_search"}]}
        skipped = await chat.client.post("/v1/responses", json=asked)
        assert error_of(skipped)[:2] == (400, "tools[0].type")


async def test_older_names_of_constraints_constrain() -> None:
    constraints = {
        "json": {"type": "object"},
        "regex": "a+",
        "choice": ["yes", "no"],
        "grammar": 'root ::= "a"',
    }
    async with chatting("ok") as chat:
        for name, value in constraints.items():
            await chat.ask(structured_outputs={name: value})
            expected = chat.worker.spec.params.structured_outputs
            await chat.ask(**{f"guided_{name}": value})
            assert chat.worker.spec.params.structured_outputs == expected is not None


async def test_other_roles_and_messages_without_content_reach_the_template() -> None:
    async with chatting("ok") as chat:
        messages = [
            {"role": "critic", "content": "Be brief."},
            {"role": "user", "tool_calls": [], "tool_call_id": None},
            {"role": "user", "content": ["Hi"]},
        ]
        await chat.ask(messages=messages)
        prompt = await chat.prompt()
        assert "critic" in prompt
        assert "Be brief." in prompt


@pytest.mark.parametrize(
    ("fields", "thinks"),
    [
        ({}, ""),
        ({"enable_thinking": True}, "True"),
        ({"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}}, "False"),
        ({"enable_thinking": False, "reasoning_effort": "high"}, "False"),
    ],
)
async def test_enable_thinking_is_the_templates_variable(fields: dict[str, Any], thinks: str) -> None:
    async with http_cluster(limits=RequestLimits(trust_request_chat_template=True)) as client:
        body = {"messages": HELLO, "chat_template": "{{ enable_thinking }}", **fields}
        tokens = (await client.post("/tokenize", json=body)).json()["tokens"]
        assert TOKENIZER.decode(tokens) == thinks


async def test_an_invocation_is_answered_as_its_body_asks() -> None:
    async with http_cluster(ScriptedWorker("w1", answers=[ANSWER])) as client:
        completion = (await client.post("/invocations", json=ASKED)).json()
        assert completion["object"] == "text_completion"
        chat = (await client.post("/invocations", json={"messages": HELLO, "max_tokens": 3})).json()
        assert chat["object"] == "chat.completion"
        assert error_of(await client.post("/invocations", json={"input": "x"}))[:2] == (400, "messages")
        assert (await client.post("/ping")).status_code == 200


async def test_a_slash_at_the_end_leads_to_the_route_without_it() -> None:
    settings = HttpSettings(root_path="/llm", api_keys=("key",))
    async with http_cluster(ScriptedWorker("w1", answers=[ANSWER]), http=settings) as client:
        moved = await client.post(f"{COMPLETIONS}/?a=b", json=ASKED)
        assert moved.status_code == 401
        client.headers["authorization"] = "Bearer key"
        moved = await client.post(f"{COMPLETIONS}/?a=b", json=ASKED)
        assert (moved.status_code, moved.headers["location"]) == (307, "/llm/v1/completions?a=b")
        assert (await client.get("/v1/models/")).json() == (await client.get("/v1/models")).json()
    async with http_cluster(ScriptedWorker("w1", answers=[ANSWER])) as client:
        for path in ("//evil.example/", "//v1/completions/", "/v1/completions//"):
            outside = await client.post(str(client.base_url).rstrip("/") + path, json=ASKED)
            assert (outside.status_code, "location" in outside.headers) == (404, False), path
        client.follow_redirects = True
        assert (await client.post(f"{COMPLETIONS}/", json=ASKED)).json()["choices"]


async def test_routes_of_vllm_that_are_not_here_say_what_to_do() -> None:
    async with http_cluster() as client:
        for path, words in {
            "/v1/audio/transcriptions": "no speech models",
            **dict.fromkeys(("/sleep", "/drain", "/pause"), "--enable-operator-routes"),
            "/v1/responses/compact": "not compacted",
            "/tokenizer_info": "--enable-tokenizer-info-endpoint",
        }.items():
            status, _, message = error_of(await client.post(path, json={}))
            assert (status, words in message) == (404, True), message
        for method in ("PUT", "PATCH"):
            assert (await client.request(method, "/v1/responses/compact")).status_code == 405


async def test_the_tokenizer_is_described_where_the_operator_allows_it() -> None:
    async with http_cluster(http=HttpSettings(enable_tokenizer_info=True)) as client:
        described = (await client.get("/tokenizer_info")).json()
        assert described["chat_template"] == TOKENIZER.chat_template
        assert described["tokenizer_class"]


async def test_a_rendered_request_generates_what_the_request_does() -> None:
    constrained = {"structured_outputs": {"choice": ["a", "b"]}, "vllm_xargs": {"a": 1}, "temperature": 0.5}
    async with chatting("ok") as chat:
        body = {"messages": HELLO, "seed": 7, "top_k": 3, "stop": "x", **constrained}
        await chat.ask(**body)
        expected = chat.worker.spec
        rendered = (await chat.client.post(f"{CHAT}/render", json=body)).json()
        assert rendered["token_ids"] == list(expected.prompt_token_ids)
        response = await chat.client.post("/inference/v1/generate", json=rendered)
        assert response.status_code == 200, response.text
        assert chat.worker.spec.params == expected.params
        assert chat.worker.spec.prompt_token_ids == expected.prompt_token_ids
        several = {"prompt": ["x y", "z"], "max_tokens": 2}
        items = (await chat.client.post(f"{COMPLETIONS}/render", json=several)).json()
        prompts = [list(TOKENIZER.encode(text)) for text in ("x y", "z")]
        assert [item["token_ids"] for item in items] == prompts
        assert items[0]["sampling_params"]["max_tokens"] == 2
        refused = await chat.client.post(f"{COMPLETIONS}/render", json={"prompt": "x", "temperature": -1})
        assert error_of(refused)[:2] == (400, "temperature")


async def test_a_model_is_listed_with_the_folder_that_it_is_served_from() -> None:
    async with http_cluster() as client:
        (model,) = (await client.get("/v1/models")).json()["data"]
        assert (model["id"], model["root"]) == ("tiny", str(MODEL))
