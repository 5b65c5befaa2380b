"""The operator's settings of answers and of the HTTP server, through a real socket."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from baton_core.errors import InvalidConfigError
from baton_router.main import RouterServer
from baton_router.process.http_settings import AnswerSettings, HttpSettings
from baton_router.process.logged_requests import LoggedRequests
from baton_router.process.router_settings import RouterSettings
from baton_router.text.chat_template import ChatDefaults
from tests.integration.http_router import chunks_of, http_cluster
from tests.integration.router_cluster import ANSWER, MODEL, PROMPT
from tests.integration.scripted_worker import ScriptedWorker

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TEMPLATE = "{{ tone or 'plain' }}|{% for m in messages %}{{ m.content }}{% endfor %}|{{ 1 if tools else 0 }}"
QUESTION = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def worker() -> ScriptedWorker:
    return ScriptedWorker("w1", answers=[ANSWER])


def answering(**answers: Any) -> HttpSettings:
    return HttpSettings(answers=AnswerSettings(**answers))


async def test_conversations_get_the_operators_variables_where_they_bring_none() -> None:
    chat = ChatDefaults(template_arguments={"tone": "warm"})
    settings = {"http": answering(chat=chat), "chat_template": TEMPLATE}
    async with http_cluster(worker(), **settings) as client:
        fields = {"messages": QUESTION["messages"]}
        texts = [
            (await client.post("/tokenize", json={**fields, "return_token_strs": True, **more})).json()
            for more in ({}, {"chat_template_kwargs": {"tone": "cold"}})
        ]
        warm, cold = ("".join(one["token_strs"]) for one in texts)
        assert warm.startswith("warm|")
        assert cold.startswith("cold|")


@pytest.mark.parametrize("name", ["messages", "tools"])
def test_a_variable_with_a_reserved_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"^--default-chat-template-kwargs has '{name}'; allowed: "):
        ChatDefaults(template_arguments={name: 1})


async def test_answers_have_the_operators_role() -> None:
    async with http_cluster(worker(), http=answering(response_role="bot")) as client:
        whole = (await client.post(CHAT, json=QUESTION)).json()
        assert whole["choices"][0]["message"]["role"] == "bot"
        streamed = await client.post(CHAT, json={**QUESTION, "stream": True})
        assert chunks_of(streamed.text)[0]["choices"][0]["delta"]["role"] == "bot"


@pytest.mark.parametrize(
    ("route", "body"), [(CHAT, QUESTION), (COMPLETIONS, {"prompt": PROMPT, "max_tokens": 3})]
)
async def test_every_chunk_has_the_usage_so_far_where_the_operator_wants_it(
    route: str, body: dict[str, Any]
) -> None:
    async with http_cluster(worker(), http=answering(includes_usage=True)) as client:
        for options in ({}, {"stream_options": {"include_usage": False}}):
            streamed = await client.post(route, json={**body, "stream": True, **options})
            chunks = chunks_of(streamed.text)
            assert [chunk["usage"]["completion_tokens"] for chunk in chunks][-3:] == [2, 3, 3]
        assert (await client.post(route, json=body)).status_code == 200


async def test_tokens_are_named_by_their_ids_where_requests_do_not_say_it() -> None:
    async with http_cluster(worker(), http=answering(names_token_ids=True)) as client:
        body = {"prompt": PROMPT, "max_tokens": 1, "logprobs": 0}
        for more, is_named in (({}, True), ({"return_tokens_as_token_ids": False}, False)):
            choice = (await client.post(COMPLETIONS, json={**body, **more})).json()["choices"][0]
            assert choice["logprobs"]["tokens"][0].startswith("token_id:") is is_named


@pytest.mark.parametrize("excludes", [True, False])
async def test_tools_that_may_not_be_called_are_left_out_where_the_operator_wants_it(excludes: bool) -> None:
    settings = {"http": answering(excludes_unused_tools=excludes), "chat_template": TEMPLATE}
    async with http_cluster(worker(), **settings) as client:
        body = {**QUESTION, "tools": [TOOL], "tool_choice": "none", "return_token_ids": True}
        answer = (await client.post(CHAT, json=body)).json()
        ids = answer["prompt_token_ids"]
        text = (await client.post("/detokenize", json={"tokens": ids})).json()["prompt"]
        assert text.endswith("|0" if excludes else "|1")


@pytest.mark.parametrize("excludes", [True, False])
async def test_counted_tokens_are_those_of_the_message_without_its_excluded_tools(excludes: bool) -> None:
    template = "{{ messages[0].content }}{{ 'a tool' if tools else '' }}"
    settings = {"http": answering(excludes_unused_tools=excludes), "chat_template": template}
    async with http_cluster(worker(), **settings) as client:
        tool = {"name": "f", "input_schema": {"type": "object"}}
        body = {**QUESTION, "tools": [tool], "tool_choice": {"type": "none"}}
        billed = (await client.post("/v1/messages", json=body)).json()["usage"]
        del body["max_tokens"]
        counted = (await client.post("/v1/messages/count_tokens", json=body)).json()
        num_billed = billed["input_tokens"] + billed["cache_read_input_tokens"]
        assert counted["input_tokens"] == num_billed


_ROUTES: dict[str, dict[str, Any]] = {
    CHAT: {**QUESTION, "max_tokens": 3},
    COMPLETIONS: {"prompt": PROMPT, "max_tokens": 3},
    "/v1/responses": {"input": PROMPT, "max_output_tokens": 3},
    "/v1/messages": QUESTION,
    "/inference/v1/generate": {"token_ids": [5], "sampling_params": {"max_tokens": 3}},
}


@pytest.mark.parametrize(
    ("generation", "own", "most"),
    [
        ({"override_generation_config": {"max_new_tokens": 2}}, 9, 2),
        ({"generation_config": ""}, 2, 2),
        ({"override_generation_config": {"top_k": 5}}, 2, 3),
    ],
)
async def test_no_output_is_longer_than_the_operators_max_new_tokens(
    generation: dict[str, Any], own: int, most: int, tmp_path: Path
) -> None:
    (tmp_path / "generation_config.json").write_text(f'{{"max_new_tokens": {own}}}')
    given = {name: value or str(tmp_path) for name, value in generation.items()}
    one = worker()
    async with http_cluster(one, **given) as client:
        for route, body in _ROUTES.items():
            assert (await client.post(route, json=body)).status_code == 200
        assert [spec.params.max_tokens for spec in one.specs.values()] == [most] * len(_ROUTES)


async def test_seeds_follow_from_the_operators_seed() -> None:
    async def seeds(seed: int | None) -> list[int]:
        one = ScriptedWorker("w1", answers=[ANSWER] * 3)
        async with http_cluster(one, seed=seed) as client:
            for _ in range(3):
                await client.post(COMPLETIONS, json={"prompt": PROMPT, "max_tokens": 3})
        return [spec.params.seed or 0 for spec in one.specs.values()]

    first, second, other, free = await seeds(4), await seeds(4), await seeds(5), await seeds(None)
    assert first == second
    assert len({*first, *other, *free}) == 9


async def test_requests_are_logged_and_their_prompts_with_the_level_debug(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "baton_router.process.logged_requests")
    logged = LoggedRequests(is_on=True, max_length=2)
    async with http_cluster(worker(), log_requests=logged) as client:
        await client.post(COMPLETIONS, json={"prompt": [5, 6, 7], "max_tokens": 3, "seed": 1})
    received, prompt = (
        record for record in caplog.records if record.name == "baton_router.process.logged_requests"
    )
    assert received.getMessage() == "received 3 prompt tokens, seed=1, max_tokens=3"
    assert prompt.getMessage() == "prompt: [5, 6]"
    assert received.request_id == prompt.request_id  # type: ignore[attr-defined]


MIDDLEWARE = """
class Stamp:
    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        async def stamped(message):
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-stamp", b"1")]
            await send(message)

        await self.app(scope, receive, stamped)


async def block(request, call_next):
    from starlette.responses import PlainTextResponse

    if request.headers.get("x-block"):
        return PlainTextResponse("blocked", 403)
    return await call_next(request)


number = 3
"""


@pytest.fixture
def middleware(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "operators_middleware.py").write_text(MIDDLEWARE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "operators_middleware", raising=False)
    return "operators_middleware"


async def test_middleware_of_the_operator_is_around_all_routes(middleware: str) -> None:
    http = HttpSettings(middleware=(f"{middleware}.Stamp", f"{middleware}:block"))
    async with http_cluster(worker(), http=http) as client:
        answer = await client.get("/v1/models")
        assert (answer.status_code, answer.headers["x-stamp"]) == (200, "1")
        blocked = await client.get("/v1/models", headers={"x-block": "1"})
        assert (blocked.status_code, blocked.headers["x-stamp"]) == (403, "1")
        assert "x-request-id" in blocked.headers
        streamed = await client.post(COMPLETIONS, json={"prompt": PROMPT, "max_tokens": 3, "stream": True})
        assert len(chunks_of(streamed.text)) > 1


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("operators_middleware.Missing", "which cannot be imported (AttributeError"),
        ("no_such_module.Stamp", "which cannot be imported (ModuleNotFoundError"),
        ("operators_middleware.number", "which is a int; allowed: a class of ASGI middleware"),
    ],
)
async def test_middleware_that_cannot_be_had_is_refused_at_start(
    middleware: str, name: str, what: str
) -> None:
    settings = RouterSettings(model=str(MODEL), port=0, grpc_port=0, http=HttpSettings(middleware=(name,)))
    with pytest.raises(InvalidConfigError) as refused:
        await RouterServer(settings).start()
    assert str(refused.value).startswith(f"--middleware is {name!r}, {what}")


async def test_a_server_without_docs_serves_neither_page_nor_description() -> None:
    for serves_docs, status in ((True, 200), (False, 404)):
        async with http_cluster(worker(), http=HttpSettings(serves_docs=serves_docs)) as client:
            for path in ("/docs", "/openapi.json"):
                assert (await client.get(path)).status_code == status
            assert (await client.get("/v1/models")).status_code == 200
