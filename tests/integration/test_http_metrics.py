"""A running router's counts of its HTTP calls: by route, and without a label for each path."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from baton_router.process.http_settings import HttpSettings
from tests.integration.http_router import http_cluster
from tests.integration.router_cluster import ANSWER
from tests.integration.scripted_worker import ScriptedWorker

Labels = tuple[str, ...]


async def told(client: httpx.AsyncClient, name: str, **headers: str) -> dict[Labels, float]:
    """Samples of one name, by the values of their labels in the order of the labels' names."""
    text = (await client.get("/metrics", headers=headers)).text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for sample in samples
        if sample.name == name
    }


async def test_calls_are_counted_by_route_method_and_class_of_status() -> None:
    asked: dict[str, Any] = {"prompt": "x", "max_tokens": 1}
    async with http_cluster(ScriptedWorker("w1", answers=[ANSWER, ANSWER])) as client:
        await client.post("/v1/completions", json=asked)
        await client.post("/v1/completions", json=asked | {"stream": True})
        await client.post("/v1/completions", json={"prompt": "x", "top_p": 7})
        for name in ("a", "b/c"):
            await client.get(f"/v1/models/{name}")
        await client.put("/v1/models")
        assert await told(client, "http_requests_total") == {
            ("/v1/completions", "POST", "2xx"): 2,
            ("/v1/completions", "POST", "4xx"): 1,
            ("/v1/models/{model}", "GET", "4xx"): 2,
            ("/v1/models", "PUT", "4xx"): 1,
        }
        counts = await told(client, "http_request_duration_seconds_count")
        assert counts["/v1/completions", "POST"] == 3
        sums = await told(client, "http_request_duration_seconds_sum")
        assert 0 < sums["/v1/completions", "POST"] < 20


async def test_calls_are_counted_where_starlette_does_not_tell_the_route(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handle = Route.handle

    async def handle_as_in_1_0(self: Route, scope: Scope, receive: Receive, send: Send) -> None:
        scope.pop("route", None)
        await handle(self, scope, receive, send)

    monkeypatch.setattr(Route, "handle", handle_as_in_1_0)
    async with http_cluster() as client:
        await client.get("/v1/models/a")
        await client.put("/v1/models")
        assert await told(client, "http_requests_total") == {
            ("/v1/models/{model}", "GET", "4xx"): 1,
            ("/v1/models", "PUT", "4xx"): 1,
        }


async def test_neither_paths_nor_methods_of_clients_become_labels() -> None:
    async with http_cluster() as client:
        for number in range(20):
            await client.get(f"/path/{number}")
        for method in ("PROPFIND", "MKCOL", "PURGE"):
            await client.request(method, "/healthy")
        for _ in range(3):
            for probe in ("/health", "/live", "/ready", "/ping", "/load", "/version"):
                await client.get(probe)
        assert await told(client, "http_requests_total") == {
            ("none", "GET", "4xx"): 20,
            ("none", "none", "4xx"): 3,
        }


async def test_calls_without_a_key_and_from_other_origins_are_counted() -> None:
    settings = HttpSettings(api_keys=("key",), allowed_origins=("https://a.example",))
    preflight = {"origin": "https://a.example", "access-control-request-method": "POST"}
    async with http_cluster(http=settings) as client:
        await client.post("/v1/completions")
        await client.options("/v1/completions", headers=preflight)
        assert await told(client, "http_requests_total", authorization="Bearer key") == {
            ("/v1/completions", "POST", "4xx"): 1,
            ("none", "OPTIONS", "2xx"): 1,
        }


async def test_cached_tokens_waits_and_the_process_are_told() -> None:
    async with http_cluster(ScriptedWorker("w1", answers=[ANSWER])) as client:
        answer = await client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1})
        usage = answer.json()["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        assert sum((await told(client, "vllm:prompt_tokens_cached_total")).values()) == cached
        waiting = await told(client, "vllm:num_requests_waiting_by_reason")
        assert {(engine, reason) for engine, _, reason in waiting} == {("w1", "capacity"), ("w1", "deferred")}
        assert (await told(client, "process_resident_memory_bytes"))[()] > 2**20
        assert (await told(client, "process_open_fds"))[()] > 0
