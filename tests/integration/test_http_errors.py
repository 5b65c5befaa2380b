"""An error reaches the client with status, field and message in OpenAI's body."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import httpx
import pytest

from baton_router.process.http_settings import HttpSettings
from baton_router.requests.request_limits import RequestLimits
from baton_router.requests.request_text import RequestText
from tests.integration.http_router import error_of, http_cluster
from tests.integration.router_cluster import ANSWER, PROMPT
from tests.integration.scripted_worker import ScriptedWorker

COMPLETIONS = "/v1/completions"
JSON = {"content-type": "application/json"}
MAX_BODY_BYTES = 10_000
WRONG_BODIES: list[tuple[bytes, str | None]] = [
    (b"", "body"),
    (b"{", "body"),
    (b"null", "body"),
    (b"[]", "body"),
    (b'"text"', "body"),
    (b"\xff\xfe", "body"),
    (b"\xef\xbb\xbf{}", "prompt"),
    (b'{"prompt": "\xc3\x28"}', "body"),
    (b'{"prompt": "\\ud800"}', "body"),
    (b'{"prompt": "x", "temperature": NaN}', "body"),
    (b'{"prompt": "x"}{}', "body"),
    (b"[" * 9000, "body"),
    (b'{"prompt": "x", "suffix": ' + b"[" * 9000, "body"),
    (b'{"prompt": "x", "suffix": ' + b"[" * 900 + b"]" * 900 + b"}", "suffix"),
    (b"{}", "prompt"),
    (b'{"prompt": 5}', "prompt"),
    (b'{"prompt": [1.5]}', "prompt[0]"),
    (b'{"prompt": [[1, "a"]]}', "prompt[0][1]"),
    (b'{"prompt": [99999999999999999999999]}', "prompt"),
    (b'{"prompt": "x", "max_tokens": "nine"}', "max_tokens"),
    (b'{"prompt": "x", "max_tokens": 9.5}', "max_tokens"),
    (b'{"prompt": "x", "max_tokens": 1e999}', "max_tokens"),
    (b'{"prompt": "x", "max_tokens": 123456789012345678901234567890}', "max_tokens"),
    (b'{"prompt": "x", "stream": "yes"}', "stream"),
    (b'{"prompt": "x", "temperature": "nan"}', "temperature"),
    (b'{"prompt": "x", "stop": {"a": 1}}', "stop"),
    (b'{"prompt": "x", "logit_bias": {"a": "b"}}', "logit_bias[...]"),
    (b'{"prompt": "x", "response_format": {"type": "yaml"}}', "response_format.type"),
    (b'{"prompt": "x", "response_format": {"type": "json_schema"}}', "response_format.json_schema"),
]


async def test_a_wrong_body_is_refused_by_field_and_reaches_no_worker() -> None:
    worker = ScriptedWorker("w1", answers=[ANSWER])
    async with http_cluster(worker) as client:
        for body, param in WRONG_BODIES:
            response = await client.post(COMPLETIONS, content=body, headers=JSON)
            assert error_of(response)[:2] == (400, param), body[:60]
            assert response.json()["error"]["type"] == "invalid_request_error"
        assert not worker.commands


async def test_routes_methods_and_models_that_are_not_there() -> None:
    async with http_cluster(ScriptedWorker("w1", answers=[ANSWER])) as client:
        for path in ("/nope", "/v1", "/v1//completions", "/%2e%2e/health", "/nope/"):
            response = await client.post(path, json={})
            assert response.json()["detail"] == "Not Found"
            assert error_of(response)[0] == 404
        assert error_of(await client.get("/v1/models/other"))[:2] == (404, "model")
        response = await client.get(COMPLETIONS)
        assert (error_of(response)[0], response.headers["allow"]) == (405, "POST")
        assert response.json()["detail"] == "Method Not Allowed"
        for path, methods in (("/v1/responses/x", "DELETE, GET, HEAD"), ("/ping", "GET, HEAD, POST")):
            response = await client.put(path)
            assert (response.status_code, response.headers["allow"]) == (405, methods)
            assert error_of(response)[2].endswith(f"allowed at {path}: {methods}")
        response = await client.post(COMPLETIONS, json={"prompt": "x", "model": "other"})
        assert error_of(response) == (404, "model", "model is 'other'; allowed: 'tiny'")
        assert response.json()["error"]["code"] == "model_not_found"


async def test_a_body_is_bounded_and_json() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * 1000

    settings = HttpSettings(max_body_bytes=MAX_BODY_BYTES)
    async with http_cluster(ScriptedWorker("w1", answers=[ANSWER]), http=settings) as client:
        whole = json.dumps({"prompt": "x" * MAX_BODY_BYTES}).encode()
        for content in (whole, pieces(), b"x" * 2**23):
            response = await client.post(COMPLETIONS, content=content, headers=JSON)
            status, _, message = error_of(response)
            assert status == 413
            assert message.endswith(f"; allowed: at most {MAX_BODY_BYTES} bytes")
        just = json.dumps({"prompt": "x", "max_tokens": 1}).encode().ljust(MAX_BODY_BYTES)
        assert (await client.post(COMPLETIONS, content=just, headers=JSON)).status_code == 200
        form = {"content-type": "application/x-www-form-urlencoded"}
        assert error_of(await client.post(COMPLETIONS, content=just, headers=form))[0] == 415


async def test_who_comes_too_early_or_too_many_may_come_again() -> None:
    async with http_cluster() as client:
        response = await client.post(COMPLETIONS, json={"prompt": "x"})
        assert (error_of(response)[0], response.headers["retry-after"]) == (503, "1")
        assert response.json()["error"]["type"] == "server_error"


async def test_too_many_calls_are_told_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton_router.process.generation_service.MAX_CALLS", 0)
    async with http_cluster(ScriptedWorker("w1", answers=[ANSWER])) as client:
        response = await client.post(COMPLETIONS, json={"prompt": "x"})
        assert (error_of(response)[0], response.headers["retry-after"]) == (429, "1")
        assert response.json()["error"]["type"] == "rate_limit_error"


async def test_a_call_that_takes_too_long_is_told_so() -> None:
    worker = ScriptedWorker("w1", answers=[ANSWER], num_steps=1)
    async with http_cluster(worker, request_timeout_s=0.1) as client:
        response = await client.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 9})
        assert error_of(response)[0] == 504


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_fault_of_the_router_stays_in_its_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_streamed: bool
) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr(RequestText, "finish" if is_streamed else "push", fail)
    monkeypatch.setattr("baton_router.http.server_routes._describe", fail)
    async with http_cluster(ScriptedWorker("w1", answers=[ANSWER])) as client:
        asked = {"prompt": "x", "max_tokens": 2, "stream": is_streamed}
        response = await client.post(COMPLETIONS, json=asked)
        if is_streamed:
            *_, error, done, rest = response.text.split("\n\n")
            assert (response.status_code, done, rest) == (200, "data: [DONE]", "")
            response = httpx.Response(500, content=error.removeprefix("data: "))
        assert error_of(response) == (500, None, "internal error; the router's log has the cause")
        models = await client.get("/v1/models")
        assert error_of(models) == (500, None, "internal error; the router's log has the cause")
    assert "a secret" in caplog.text


async def test_an_answer_that_could_hold_too_much_is_refused_by_its_field() -> None:
    limits = RequestLimits(max_answer_bytes=16 * 4 * 30 * 3)
    async with http_cluster(ScriptedWorker("w1"), limits=limits) as client:
        asked = {"prompt": PROMPT, "max_tokens": 31, "n": 4, "logprobs": 2}
        status, field, text = error_of(await client.post("/v1/completions", json=asked))
        assert (status, field) == (400, "logprobs")
        assert "could hold 5952 bytes of log-probabilities, and --max-answer-bytes is 5760" in text
        chat = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 31, "n": 4}
        refused = await client.post(
            "/v1/chat/completions", json={**chat, "logprobs": True, "top_logprobs": 2}
        )
        assert error_of(refused)[:2] == (400, "top_logprobs")


async def test_what_the_template_refuses_is_400_on_all_routes() -> None:
    messages = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3}
    asked = {"chat/completions": messages, "messages": messages, "responses": {"input": "x"}}
    async with http_cluster(chat_template="{{ raise_exception('No user.') }}") as client:
        for route, body in asked.items():
            field = "input" if route == "responses" else "messages"
            response = await client.post(f"/v1/{route}", json=body)
            error = response.json()["error"]
            assert response.status_code == 400
            assert error["message"].startswith(f"{field} is 'messages of user'; allowed: what the model's")
            assert "(No user.)" in error["message"]


async def test_bodies_of_very_many_values_are_refused_and_texts_of_any_form_are_not() -> None:
    async with http_cluster() as client:
        for value, text in (
            ([[]] * 600_000, "body is 'JSON with 600003 brackets'; allowed: at most 524288"),
            ([""] * 300_000, "body is 'JSON with 300004 strings'; allowed: at most 262144"),
        ):
            asked = {"prompt": "a", "vllm_xargs": {"a": value}}
            assert error_of(await client.post("/v1/completions", json=asked)) == (400, "body", text)
        for content in ("[" * 500_000, '"' * 600_000):
            response = await client.post("/tokenize", json={"prompt": content})
            assert response.status_code == 200
