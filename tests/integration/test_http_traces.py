"""Traces of calls over HTTP."""

from __future__ import annotations

from baton_service.tracing import TracingSettings
from tests.integration.http_router import http_cluster
from tests.integration.router_cluster import ANSWER, PROMPT
from tests.integration.scripted_worker import ScriptedWorker
from tests.otlp_receiver import receiving


async def test_all_prompts_of_a_call_are_one_trace() -> None:
    names = ("tiny", "small")
    with receiving() as receiver:
        tracing = TracingSettings(endpoint=f"http://{receiver.address}")
        worker = ScriptedWorker("w1", answers=[ANSWER] * 3)
        async with http_cluster(worker, tracing=tracing, served_model_names=names) as client:
            asked = {"model": "small", "prompt": [PROMPT] * 3, "max_tokens": 3}
            answered = await client.post("/v1/completions", json=asked)
            assert answered.status_code == 200
        _, trace_id, span_id, _ = answered.headers["traceparent"].split("-")
        roots = [span for span in receiver.spans if span.name == "llm_request"]
        assert [root.trace_id for root in roots] == [trace_id] * 3
        assert sorted(root.parent_id for root in roots) == ["", span_id, span_id]
        assert {root.attributes["gen_ai.request.model"] for root in roots} == {"small"}
