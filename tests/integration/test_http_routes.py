"""The routes beside generation: state, models, text, operators, the description; and names of requests."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from dataclasses import replace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from baton_core.requests.pooling import PoolingModel, PoolingTask, encode_pooling_model
from baton_core.sessions.worker_info import Role
from baton_router.process.http_settings import HttpSettings
from tests.integration.http_router import client_of, error_of, http_cluster
from tests.integration.router_cluster import ANSWER, PROMPT, TOKENIZER, serving
from tests.integration.scripted_worker import ScriptedWorker, until

COMPLETIONS = "/v1/completions"


def worker() -> ScriptedWorker:
    return ScriptedWorker("w1", answers=[ANSWER])


async def test_health_follows_the_workers() -> None:
    async with serving() as server, client_of(server) as client:
        for path in ("/health", "/ready", "/ping"):
            assert (await client.get(path)).status_code == 503
        assert (await client.get("/live")).status_code == 200
        async with ScriptedWorker("d1", Role.DECODE).joined(server.grpc_port):
            assert (await client.get("/health")).status_code == 503
        async with ScriptedWorker("w1").joined(server.grpc_port):
            for path in ("/health", "/ready", "/live", "/ping"):
                assert (await client.get(path)).status_code == 200
                assert (await client.head(path)).status_code == 200


async def test_the_model_is_listed_under_each_of_its_names() -> None:
    async with http_cluster(worker(), served_model_names=("org/tiny", "small")) as client:
        listed = (await client.get("/v1/models")).json()
        assert [model["id"] for model in listed["data"]] == ["org/tiny", "small"]
        assert {model["max_model_len"] for model in listed["data"]} == {4096}
        assert (await client.get("/v1/models/org/tiny")).json() == listed["data"][0]


async def test_metrics_count_what_was_served() -> None:
    async with http_cluster(worker()) as client:
        assert re.fullmatch(r"\d+\.\d+.*", (await client.get("/version")).json()["version"])
        assert (await client.get("/load")).json() == {"server_load": 0}
        for _ in range(2):
            await client.post(COMPLETIONS, json={"prompt": PROMPT, "max_tokens": 3})
        text = (await client.get("/metrics")).text
        samples: defaultdict[str, float] = defaultdict(float)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.labels.get("model_name") == "tiny" and "le" not in sample.labels:
                    samples[sample.name] += sample.value
        num_prompt_tokens = 2 * len(TOKENIZER.encode(PROMPT))
        assert samples["vllm:prompt_tokens_total"] == num_prompt_tokens
        assert samples["vllm:generation_tokens_total"] == 6
        assert samples["vllm:request_success_total"] == 2
        assert samples["vllm:e2e_request_latency_seconds_count"] == 2
        assert samples["vllm:time_to_first_token_seconds_count"] == 2
        assert {"vllm:num_requests_running", "vllm:kv_cache_usage_perc"} <= {*samples}
        assert samples["vllm:num_requests_running"] == samples["vllm:num_requests_waiting"] == 0
        assert samples["vllm:kv_cache_usage_perc"] == 0


async def test_text_becomes_tokens_and_back_without_workers() -> None:
    async with http_cluster() as client:
        text = "Hello, 你好!"
        asked = {"prompt": text, "return_token_strs": True}
        answer = (await client.post("/tokenize", json=asked)).json()
        assert answer["tokens"] == list(TOKENIZER.encode(text))
        assert answer["count"] == len(answer["tokens"])
        assert answer["token_strs"][:3] == ["Hello", ",", "Ġ"]
        back = await client.post("/detokenize", json={"tokens": answer["tokens"]})
        assert back.json() == {"prompt": text}
        assert (await client.post("/detokenize", json={"tokens": []})).json() == {"prompt": ""}
        chat = {"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": False}
        tokens = (await client.post("/tokenize", json=chat)).json()["tokens"]
        longer = (await client.post("/tokenize", json=chat | {"add_generation_prompt": True})).json()
        assert longer["tokens"][: len(tokens)] == tokens
        assert longer["count"] > len(tokens)
        for wrong, param in (({}, "prompt"), (asked | chat, "prompt"), ({"prompt": 3}, "prompt")):
            assert error_of(await client.post("/tokenize", json=wrong))[:2] == (400, param)
        refused = await client.post("/detokenize", json={"tokens": [2**31]})
        assert error_of(refused)[:2] == (400, "tokens")


async def test_operator_routes_are_off_unless_enabled() -> None:
    adapter = {"lora_name": "a", "lora_path": "/b"}
    async with http_cluster(worker()) as client:
        assert error_of(await client.post("/sleep"))[0] == 404
        assert error_of(await client.post("/v1/load_lora_adapter", json=adapter))[0] == 404
    async with http_cluster(worker(), http=HttpSettings(enable_operator_routes=True)) as client:
        response = await client.post("/v1/load_lora_adapter", json=adapter)
        assert error_of(response)[:2] == (400, "lora_name")
        response = await client.post("/v1/unload_lora_adapter", json={"lora_name": "a"})
        assert error_of(response)[:2] == (404, "lora_name")


async def test_a_request_is_named_by_its_client_or_here() -> None:
    asked = {"prompt": "x", "max_tokens": 1}
    async with http_cluster(worker()) as client:
        response = await client.post(COMPLETIONS, json=asked, headers={"x-request-id": "mine"})
        assert response.headers["x-request-id"] == "mine"
        assert response.json()["id"] == "cmpl-mine"
        both = asked | {"request_id": "of the body"}
        response = await client.post(COMPLETIONS, json=both, headers={"x-request-id": "mine"})
        assert response.headers["x-request-id"] == "mine"
        assert response.json()["id"] == "cmpl-of the body"
        for wrong in (b"x" * 129, b"\xff", b"a\tb"):
            response = await client.post(COMPLETIONS, json=asked, headers=[(b"x-request-id", wrong)])
            assert re.fullmatch(r"req-[0-9a-f]{16}", response.headers["x-request-id"])
        for path in ("/health", "/nope", "/v1/models"):
            response = await client.get(path, headers={"x-request-id": "mine"})
            assert response.headers["x-request-id"] == "mine"


async def test_a_name_of_a_header_may_come_again_while_it_runs_and_one_of_a_body_not() -> None:
    name, held = "m" * 128, ScriptedWorker("w1", answers=[ANSWER], num_steps=1)
    headers = {"x-request-id": name}
    async with http_cluster(held) as client:
        first = asyncio.create_task(client.post(COMPLETIONS, json={"prompt": "x"}, headers=headers))
        await until(lambda: bool(held.commands))
        held.pause(len(ANSWER))
        second = await client.post(COMPLETIONS, json={"prompt": "x"}, headers=headers)
        assert (second.status_code, second.headers["x-request-id"]) == (200, name)
        told = (await client.get(f"/debug/requests/{second.json()['id']}")).json()
        assert told["state"] == "finished"
        assert re.fullmatch(f"{name[:119]}-[0-9a-f]{{8}}", told["request_id"])
        of_body = await client.post(COMPLETIONS, json={"prompt": "x", "request_id": name})
        assert error_of(of_body)[:2] == (400, "request_id")
        assert of_body.json()["error"]["code"] == "already_exists"
        held.pause(1)
        held.go_on(name)
        assert (await first).json()["id"] == f"cmpl-{name}"
        third = await client.post(COMPLETIONS, json={"prompt": "x"}, headers=headers)
        assert third.json()["id"] == f"cmpl-{name}"


async def test_a_model_that_lacks_the_task_of_a_route_is_what_its_refusal_names() -> None:
    tasks = (PoolingTask.CLASSIFY, PoolingTask.TOKEN_CLASSIFY)
    pooling = encode_pooling_model(PoolingModel(tasks=tasks, labels=("a", "b")))
    identity = replace(worker().info.identity, pooling=pooling)
    async with http_cluster(ScriptedWorker("w1", identity=identity)) as client:
        for path, body in (
            ("/v1/embeddings", {"input": "x"}),
            ("/score", {"text_1": "x", "text_2": "y"}),
            ("/rerank", {"query": "x", "documents": ["y"]}),
        ):
            status, param, message = error_of(await client.post(path, json=body))
            assert (status, param) == (400, "model")
            this = "this one has classify, token_classify and 2 classes"
            assert message.endswith(f"; {this}; for embed run its workers with --convert embed")
        status, param, message = error_of(await client.post(COMPLETIONS, json={"prompt": "x"}))
        assert (status, param) == (400, "model")
        assert message.endswith("; for generate run its workers with --runner generate, if it has logits")
        named = await client.post("/pooling", json={"input": "x", "task": "embed"})
        assert error_of(named)[1] == "task"


async def test_the_description_names_every_route_and_type() -> None:
    async with http_cluster() as client:
        document = (await client.get("/openapi.json")).json()
        assert document["openapi"].startswith("3.1")
        assert set(document["paths"][COMPLETIONS]["post"]["responses"]) >= {"200", "400", "401", "413", "429"}
        schemas = document["components"]["schemas"]
        names = {name.removeprefix("#/components/schemas/") for name in references(document)}
        assert names <= schemas.keys()
        await client.post(COMPLETIONS, json={"prompt": "x"}, headers={"x-request-id": "mine"})
        for path, operations in document["paths"].items():
            known = (
                path.replace("{model}", "tiny").replace("{request_id}", "mine").replace("{name}", "chat.js")
            )
            for method in operations:
                reply = await client.request(method, known)
                is_served = reply.status_code not in (404, 405)
                assert is_served or reply.json()["error"]["code"] == "not_found", path
        assert schemas["CompletionRequest"]["additionalProperties"] is False


async def test_pages_come_with_their_parts_and_run_nothing_else() -> None:
    async with http_cluster() as client:
        for page in ("/", "/dashboard"):
            response = await client.get(page)
            policy = response.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "require-trusted-types-for 'script'" in policy
            assert "unsafe" not in policy
            for path in re.findall(r'(?:href|src)="(pages/[^"]+)"', response.text):
                part = await client.get(f"/{path}")
                kind = "text/css" if path.endswith(".css") else "text/javascript"
                assert part.headers["content-type"] == f"{kind}; charset=utf-8"
                assert part.headers["x-content-type-options"] == "nosniff"
                for module in re.findall(r'from "\./([^"]+)"', part.text):
                    assert (await client.get(f"/pages/{module}")).status_code == 200, module
        for name in ("chat.html", "marked.LICENSE", "..%2fmain.py", "nothing.js"):
            assert (await client.get(f"/pages/{name}")).status_code == 404, name


def references(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return own.union(*(references(value) for value in node.values()))
    return set().union(*(references(value) for value in node)) if isinstance(node, list) else set()


async def test_pages_of_allowed_origins_may_call() -> None:
    headers = {"origin": "https://a.example", "access-control-request-method": "POST"}
    settings = HttpSettings(allowed_origins=("https://a.example",), api_keys=("key",))
    async with http_cluster(http=settings) as client:
        asked = await client.options(COMPLETIONS, headers=headers)
        assert asked.status_code == 200
        assert asked.headers["access-control-allow-origin"] == "https://a.example"
        assert asked.headers["x-request-id"]
        response = await client.post(COMPLETIONS, headers={"origin": "https://a.example"})
        assert response.status_code == 401
        exposed = response.headers["access-control-expose-headers"].split(", ")
        names = ("x-request-id", "request-id", "traceparent", "x-resume-token", "x-baton-ignored")
        assert exposed == [*names, "retry-after"]
        other = await client.options(COMPLETIONS, headers={**headers, "origin": "https://b.example"})
        assert "access-control-allow-origin" not in other.headers


async def test_paths_may_have_a_root_that_a_proxy_takes_off_or_leaves() -> None:
    settings = HttpSettings(root_path="/llm", api_keys=("key",))
    async with http_cluster(worker(), http=settings) as client:
        for root in ("", "/llm"):
            assert (await client.get(f"{root}/health")).status_code == 200
            assert (await client.get(f"{root}/v1/models")).status_code == 401
        client.headers["authorization"] = "Bearer key"
        for path, status in {"/v1/models": 200, "/llm/v1/models": 200, "/llm/llm/v1/models": 404}.items():
            assert (await client.get(path)).status_code == status
        assert (await client.get("/openapi.json")).json()["servers"] == [{"url": "/llm"}]
