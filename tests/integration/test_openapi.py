"""The description at /openapi.json: what generated clients and readers of it rely on."""

from __future__ import annotations

import asyncio
from typing import Any

import jsonschema
import pytest

from baton_router.process.http_settings import HttpSettings
from tests.integration.http_router import http_cluster

OPERATION_IDS = {
    "GET /": "showChatPage",
    "GET /dashboard": "showDashboard",
    "GET /docs": "showDocs",
    "GET /pages/{name}": "getPagePart",
    "POST /v1/chat/completions": "createChatCompletion",
    "POST /v1/completions": "createCompletion",
    "POST /v1/messages": "createMessage",
    "POST /v1/messages/count_tokens": "countMessageTokens",
    "POST /v1/responses": "createResponse",
    "POST /v1/responses/input_tokens": "countResponseTokens",
    "GET /v1/responses/{response_id}": "getResponse",
    "DELETE /v1/responses/{response_id}": "deleteResponse",
    "POST /v1/responses/{response_id}/cancel": "cancelResponse",
    "GET /v1/responses/{response_id}/input_items": "listInputItems",
    "POST /v1/embeddings": "createEmbedding",
    "POST /v2/embed": "embedByType",
    "POST /pooling": "pool",
    "POST /classify": "classify",
    "POST /score": "score",
    "POST /v1/score": "scoreV1",
    "POST /rerank": "rerank",
    "POST /v1/rerank": "rerankV1",
    "POST /v2/rerank": "rerankV2",
    "POST /inference/v1/generate": "generateTokens",
    "POST /tokenize": "tokenize",
    "POST /detokenize": "detokenize",
    "GET /v1/models": "listModels",
    "GET /v1/models/{model}": "retrieveModel",
    "GET /health": "getHealth",
    "GET /live": "getLive",
    "GET /ready": "getReady",
    "GET /ping": "ping",
    "POST /ping": "postPing",
    "POST /invocations": "invoke",
    "POST /v1/chat/completions/render": "renderChatCompletion",
    "POST /v1/completions/render": "renderCompletion",
    "GET /version": "getVersion",
    "GET /load": "getLoad",
    "GET /metrics": "getMetrics",
    "GET /debug/cluster": "getCluster",
    "GET /debug/history": "getHistory",
    "GET /debug/requests": "listRequests",
    "GET /debug/requests/{request_id}": "retrieveRequest",
    "POST /reset_prefix_cache": "resetPrefixCache",
    "POST /reset_mm_cache": "resetMmCache",
    "POST /reset_encoder_cache": "resetEncoderCache",
    "POST /sleep": "sleep",
    "POST /wake_up": "wakeUp",
    "GET /is_sleeping": "isSleeping",
    "POST /set_role": "setRole",
    "POST /drain": "drain",
    "POST /undrain": "undrain",
    "POST /start_profile": "startProfile",
    "POST /stop_profile": "stopProfile",
    "POST /collective_rpc": "collectiveRpc",
    "POST /pause": "pauseGeneration",
    "POST /resume": "resumeGeneration",
    "GET /is_paused": "isPaused",
    "POST /init_weight_transfer_engine": "initWeightTransferEngine",
    "POST /start_weight_update": "startWeightUpdate",
    "POST /update_weights": "updateWeights",
    "POST /finish_weight_update": "finishWeightUpdate",
    "GET /get_world_size": "getWorldSize",
    "POST /v1/load_lora_adapter": "loadLoraAdapter",
    "POST /v1/unload_lora_adapter": "unloadLoraAdapter",
    "GET /openapi.json": "getOpenApi",
}
"""Clients are generated with these names: they are added to, and never changed."""


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    async def described() -> Any:
        async with http_cluster(http=HttpSettings(enable_operator_routes=True)) as client:
            return (await client.get("/openapi.json")).json()

    return asyncio.run(described())


def operations(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        f"{method.upper()} {path}": operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


def test_operation_ids_are_unique_and_stay_as_they_are(document: dict[str, Any]) -> None:
    ids = {name: operation["operationId"] for name, operation in operations(document).items()}
    assert ids == OPERATION_IDS
    assert len(set(ids.values())) == len(ids)


def test_each_operation_has_a_summary_of_its_own_and_a_tag_that_is_described(
    document: dict[str, Any],
) -> None:
    tags = {tag["name"]: tag["description"] for tag in document["tags"]}
    described = operations(document).values()
    assert {tag for operation in described for tag in operation["tags"]} == tags.keys()
    assert all(len(operation["tags"]) == 1 for operation in described)
    summaries = [operation["summary"] for operation in described]
    assert len(set(summaries)) == len(summaries)
    assert all(tags.values())


def test_schemas_are_json_schemas_and_examples_follow_them(document: dict[str, Any]) -> None:
    for name, schema in document["components"]["schemas"].items():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert "." not in name, "a name of Python's stands where two types have one name"
    examples = 0
    for name, operation in operations(document).items():
        if body := operation.get("requestBody"):
            media = body["content"]["application/json"]
            assert body["required"] == (name != "POST /start_weight_update")
            schema = {**media["schema"], "components": document["components"]}
            jsonschema.Draft202012Validator(schema).validate(media["example"])
            examples += 1
    assert examples == 27


def test_every_field_of_a_request_is_described(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    waiting = [operation.get("requestBody") for operation in operations(document).values()]
    seen: set[str] = set()
    bare = []
    while waiting:
        for name in references(waiting.pop()) - seen:
            seen.add(name)
            waiting.append(schemas[name])
            fields = schemas[name].get("properties", {})
            bare += [f"{name}.{field}" for field, of in fields.items() if not of.get("description")]
    assert {"ChatRequest", "ChatMessage", "StructuredOutputs"} < seen
    assert [name for name in bare if not name.endswith(("Format.type", "Block.type"))] == []
    parameters = [one for each in operations(document).values() for one in each.get("parameters", ())]
    assert [one["name"] for one in parameters if one["in"] == "query" and "description" not in one] == []


def test_fields_of_an_answers_dataclasses_are_described(document: dict[str, Any]) -> None:
    described = {
        name: {field for field, of in schema.get("properties", {}).items() if of.get("description")}
        for name, schema in document["components"]["schemas"].items()
    }
    assert described["LatencySummary"] >= {"num_failed"}
    assert described["Percentiles"] >= {"count", "slo_s", "share_within_slo", "is_slo_attained"}
    assert described["Sample"] >= {"at_s"}
    assert described["Loads"] == {"num_queued", "num_running", "num_waiting", "kv_usage", "ttft_p90_s"}


def references(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {node["$ref"].rpartition("/")[2]} if isinstance(node.get("$ref"), str) else set()
        return own.union(*(references(value) for value in node.values()))
    return set().union(*(references(value) for value in node)) if isinstance(node, list) else set()
