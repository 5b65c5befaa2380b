"""/v1/completions and /inference/v1/generate: what goes in, what comes out, whole and streamed."""

from __future__ import annotations

import asyncio
import threading
from itertools import chain
from typing import Any

import httpx
import pytest

from baton_core.requests.repetition import RepetitionDetectionParams
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_core.sessions.router_messages import Generate
from baton_core.sessions.worker_info import Role
from baton_router.text.large_texts import LARGE, LargeTexts
from tests.integration.http_router import chunks_of, client_of, error_of, http_cluster
from tests.integration.router_cluster import ANSWER, PROMPT, TEXT, TOKENIZER, serving
from tests.integration.scripted_worker import ScriptedWorker
from tests.integration.worker_cluster import working

COMPLETIONS = "/v1/completions"
OTHER = (*TOKENIZER.encode("Another answer."), 2)
"""Ended by the model's own end token."""


def two_answers(**script: Any) -> ScriptedWorker:
    return ScriptedWorker("w1", answers=[ANSWER, OTHER], **script)


async def complete(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    response = await client.post(COMPLETIONS, json={"prompt": PROMPT, "max_tokens": len(ANSWER), **body})
    assert response.status_code == 200, response.text
    return response.json()  # type: ignore[no-any-return]


async def stream(client: httpx.AsyncClient, **body: Any) -> list[dict[str, Any]]:
    asked = {"prompt": PROMPT, "max_tokens": len(ANSWER), "stream": True, **body}
    response = await client.post(COMPLETIONS, json=asked)
    assert response.headers["content-type"].startswith("text/event-stream")
    return chunks_of(response.text)


def joined(chunks: list[dict[str, Any]]) -> dict[int, str]:
    """Text of each choice; each ends once."""
    texts: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    ends = [c["index"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"] is not None]
    assert sorted(ends) == sorted(texts)
    return texts


async def test_a_completion_has_openai_s_shape() -> None:
    async with http_cluster(two_answers()) as client:
        answer = await complete(client, model="tiny", return_token_ids=True)
        assert answer["id"].startswith("cmpl-req-")
        assert (answer["object"], answer["model"]) == ("text_completion", "tiny")
        prompt_ids = list(TOKENIZER.encode(PROMPT))
        assert answer["choices"] == [
            {
                "index": 0,
                "text": TEXT,
                "logprobs": None,
                "finish_reason": "length",
                "stop_reason": None,
                "token_ids": list(ANSWER),
                "prompt_token_ids": prompt_ids,
                "prompt_logprobs": None,
            }
        ]
        assert answer["usage"] == {
            "prompt_tokens": len(prompt_ids),
            "completion_tokens": len(ANSWER),
            "total_tokens": len(prompt_ids) + len(ANSWER),
            "prompt_tokens_details": {"cached_tokens": 3},
        }


async def test_an_end_token_that_is_not_the_tokenizers_is_the_reason() -> None:
    for end, reason in ((0, 0), (2, None)):
        async with http_cluster(ScriptedWorker("w1", answers=[[*ANSWER[:3], end]])) as client:
            (choice,) = (await complete(client))["choices"]
            assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", reason)
            last = [part["choices"][0] for part in await stream(client)][-1]
            assert (last["finish_reason"], last["stop_reason"]) == ("stop", reason)


async def test_half_a_character_at_the_end_is_in_no_text_whole_or_streamed() -> None:
    half = TOKENIZER.encode("ok 🇪")[:-1]
    async with http_cluster(ScriptedWorker("w1", answers=[half])) as client:
        asked = {"max_tokens": len(half)}
        (choice,) = (await complete(client, **asked))["choices"]
        assert choice["text"] == "ok "
        assert joined(await stream(client, **asked)) == {0: "ok "}


async def test_prompts_are_texts_or_token_ids_one_or_many() -> None:
    ids = list(TOKENIZER.encode(PROMPT))
    worker = two_answers()
    async with http_cluster(worker) as client:
        for prompt, number in ((PROMPT, 1), ([PROMPT], 1), (ids, 1), ([ids], 1), ([PROMPT, ids], 0)):
            response = await client.post(COMPLETIONS, json={"prompt": prompt, "max_tokens": 2})
            if not number:
                assert error_of(response)[:2] == (400, "prompt")
            else:
                assert len(response.json()["choices"]) == number
        answer = await complete(client, prompt=[PROMPT, PROMPT], n=2)
        texts = [TEXT, "Another answer."] * 2
        assert [(c["index"], c["text"][:8]) for c in answer["choices"]] == [
            (index, text[:8]) for index, text in enumerate(texts)
        ]
        assert joined(await stream(client, prompt=[PROMPT, PROMPT], n=2)) == {
            c["index"]: c["text"] for c in answer["choices"]
        }
        specs = [c.spec.prompt_token_ids for c in worker.commands if isinstance(c, Generate)]
        assert set(specs) == {tuple(ids)}


async def test_usage_comes_last_or_with_each_chunk() -> None:
    async with http_cluster(two_answers()) as client:
        plain = await stream(client)
        assert all("usage" not in chunk for chunk in plain)
        *chunks, last = await stream(client, stream_options={"include_usage": True})
        assert all(chunk["usage"] is None for chunk in chunks)
        assert (last["choices"], last["usage"]["completion_tokens"]) == ([], len(ANSWER))
        assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
        options = {"include_usage": True, "continuous_usage_stats": True}
        *chunks, last = await stream(client, stream_options=options)
        counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
        assert counts == list(range(1, len(ANSWER) + 1))
        response = await client.post(COMPLETIONS, json={"prompt": "x", "stream_options": options})
        assert error_of(response)[:2] == (400, "stream_options")


async def test_an_echo_precedes_the_answer() -> None:
    async with http_cluster(two_answers()) as client:
        whole = await complete(client, echo=True)
        assert whole["choices"][0]["text"] == PROMPT + TEXT
        assert joined(await stream(client, echo=True)) == {0: PROMPT + TEXT}
        ids = TOKENIZER.encode(PROMPT)
        from_ids = await complete(client, prompt=list(ids), echo=True, max_tokens=0)
        assert from_ids["choices"][0]["text"] == PROMPT
        assert from_ids["usage"] == {
            "prompt_tokens": len(ids),
            "completion_tokens": 0,
            "total_tokens": len(ids),
            "prompt_tokens_details": {"cached_tokens": 3},
        }
        response = await client.post(COMPLETIONS, json={"prompt": PROMPT, "max_tokens": 0})
        assert error_of(response)[:2] == (400, "max_tokens")


async def test_every_field_reaches_the_worker() -> None:
    fields: dict[str, Any] = {
        "n": 2,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "seed": 3,
        "max_tokens": 9,
        "presence_penalty": 1.0,
        "frequency_penalty": -1.0,
        "repetition_penalty": 3.0,
        "min_tokens": 2,
        "stop_token_ids": [9],
        "allowed_token_ids": [5, 6],
        "ignore_eos": True,
        "skip_reading_prefix_cache": True,
    }
    others: dict[str, Any] = {
        "logit_bias": {"7": 101.5},
        "repetition_detection": {"max_pattern_size": 4, "min_count": 3},
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "a", "schema": {"type": "object"}, "strict": True},
        },
        "vllm_xargs": {"a": 1},
        "stop": ["no", "way"],
        "bad_words": ["bad"],
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "priority": -3,
        "cache_salt": "salt",
        "request_id": "mine",
        "truncate_prompt_tokens": 3,
        "user": "u",
        "metadata": {"a": "b"},
        "store": False,
        "best_of": 2,
        "add_special_tokens": False,
    }
    worker = ScriptedWorker("w1", answers=[ANSWER, ANSWER])
    async with http_cluster(worker) as client:
        prompt = list(ANSWER)
        response = await client.post(COMPLETIONS, json={"prompt": prompt, **fields, **others})
        assert (response.status_code, response.headers["x-request-id"]) == (200, "mine")
        (command,) = (c for c in worker.commands if isinstance(c, Generate))
        spec, params = command.spec, command.spec.params
        read = {name: getattr(params, name) for name in fields}
        assert read == {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
        assert params.logit_bias == {7: 101.5}
        assert params.repetition_detection == RepetitionDetectionParams(max_pattern_size=4, min_count=3)
        assert params.structured_outputs == StructuredOutputsParams(
            json='{"type": "object"}', backend="xgrammar"
        )
        assert params.extra_args == {"a": 1}
        assert (spec.priority, spec.cache_salt) == (-3, "salt")
        assert spec.prompt_token_ids == ANSWER[-3:]
        assert spec.bad_words


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("suffix", {"suffix": "s"}),
    ("best_of", {"best_of": 3}),
    ("n", {"prompt": ["x"] * 65, "n": 64}),
    ("use_beam_search", {"use_beam_search": True}),
    ("kv_transfer_params", {"kv_transfer_params": {"do_remote_decode": True}}),
    ("response_format", {"response_format": {"type": "structural_tag", "format": {"type": "text"}}}),
    ("prompt_embeds", {"prompt_embeds": "AAAA"}),
    ("logprobs", {"logprobs": 21}),
    ("prompt_logprobs", {"prompt_logprobs": -1}),
    ("logits_processors", {"logits_processors": ["os:system"]}),
    (
        "structured_outputs",
        {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
    ),
    ("structured_outputs", {"structured_outputs": {"regex": "a", "choice": ["b"]}}),
    (
        "structured_outputs.whitespace_pattern",
        {"structured_outputs": {"json": {}, "whitespace_pattern": "[ ]?"}},
    ),
    ("n", {"n": 65}),
    ("request_id", {"request_id": "a\nb"}),
    ("prompt", {"prompt": []}),
    ("prompt", {"prompt": [[]]}),
    ("prompt", {"prompt": ["a", 5]}),
    ("temperature", {"temperature": -1}),
    ("cache_salt", {"cache_salt": "x" * 200}),
    ("priority", {"priority": 2**40}),
]


async def test_what_cannot_be_had_is_refused_by_name() -> None:
    worker = two_answers()
    async with http_cluster(worker) as client:
        for param, body in REFUSED:
            response = await client.post(COMPLETIONS, json={"prompt": "x", **body})
            status, blamed, message = error_of(response)
            assert (status, blamed) == (400, param)
            assert message.startswith(f"{param} is ")
            assert "; allowed: " in message
        assert not worker.commands


async def test_tokens_go_in_and_out() -> None:
    async with http_cluster(two_answers()) as client:
        asked = {"token_ids": [5, 6, 7], "sampling_params": {"n": 2, "max_tokens": 3}, "request_id": "g1"}
        answer = (await client.post("/inference/v1/generate", json=asked)).json()
        assert (answer["request_id"], answer["usage"]["prompt_tokens"]) == ("g1", 3)
        tokens = [choice["token_ids"] for choice in answer["choices"]]
        assert tokens == [list(ANSWER[:3]), list(OTHER[:3])]
        streamed = {**asked, "stream": True, "stream_options": {"include_usage": True}}
        *chunks, last = chunks_of((await client.post("/inference/v1/generate", json=streamed)).text)
        pieces = [choice for chunk in chunks for choice in chunk["choices"]]
        for index in range(2):
            mine = [piece["token_ids"] for piece in pieces if piece["index"] == index]
            assert list(chain(*mine)) == tokens[index]
        assert last["usage"]["completion_tokens"] == 6
        refused = await client.post("/inference/v1/generate", json={**asked, "features": {}})
        assert error_of(refused)[:2] == (400, "features")


async def test_log_probabilities_are_told_of_prompt_and_answer() -> None:
    """A whole worker computes them."""
    async with serving() as server, working(Role.MIXED, server.grpc_port), client_of(server) as client:
        while (await client.get("/health")).status_code != 200:
            pass
        asked = {"temperature": 0, "max_tokens": 6, "logprobs": 2, "echo": True, "ignore_eos": True}
        (choice,) = (await complete(client, **asked, prompt_logprobs=1))["choices"]
        told, prompt_ids = choice["logprobs"], TOKENIZER.encode(PROMPT)
        assert {len(values) for values in told.values()} == {len(prompt_ids) + 6}
        assert "".join(told["tokens"]) == choice["text"]
        for token, offset in zip(told["tokens"], told["text_offset"], strict=True):
            assert choice["text"][offset:].startswith(token)
        assert told["token_logprobs"][0] is told["top_logprobs"][0] is None
        assert all(value <= 0 for value in told["token_logprobs"][1:])
        greedy = zip(told["tokens"], told["top_logprobs"], strict=True)
        assert all(max(top, key=top.get) == token for token, top in list(greedy)[len(prompt_ids) :])
        first, *rest = choice["prompt_logprobs"]
        assert first is None
        assert [str(token_id) in entry for token_id, entry in zip(prompt_ids[1:], rest, strict=True)]
        chunks = await stream(client, **asked)
        streamed = [part["choices"][0]["logprobs"] for part in chunks]
        for name in ("tokens", "text_offset"):
            assert list(chain(*(part[name] for part in streamed))) == told[name]
        named = await complete(client, **asked, return_tokens_as_token_ids=True)
        ids = [int(name.removeprefix("token_id:")) for name in named["choices"][0]["logprobs"]["tokens"]]
        assert tuple(ids[: len(prompt_ids)]) == prompt_ids
        params = {"max_tokens": 4, "logprobs": 1, "temperature": 0}
        body = {"token_ids": list(prompt_ids), "sampling_params": params}
        content = (await client.post("/inference/v1/generate", json=body)).json()["choices"][0]["logprobs"]
        assert [entry["token"] for entry in content["content"]] == [
            f"token_id:{token_id}" for token_id in ids[len(prompt_ids) :][:4]
        ]


async def test_texts_whose_clients_are_gone_hold_up_no_large_body(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, gate = threading.Semaphore(0), threading.Event()

    def encode(*text: object, **options: object) -> tuple[int, ...]:
        begun.release()
        gate.wait(20.0)
        return (1,)

    monkeypatch.setattr(LargeTexts, "encode", encode)
    async with http_cluster(two_answers()) as client:
        asking = [asyncio.create_task(client.post(COMPLETIONS, json={"prompt": "a" * LARGE})) for _ in "123"]
        for _ in "12":  # as many as one tenant may have at a time
            await asyncio.to_thread(begun.acquire)
        for task in asking:
            task.cancel()
        await complete(client, user="a" * 2**17)
        gate.set()
