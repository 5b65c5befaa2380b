"""The router shows its requests and its workers to those who may see them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from baton_core.errors import ErrorCode
from baton_core.requests.phases import Phase, PhaseName, PhaseReport, TokenSources
from baton_core.requests.request_context import Slo
from baton_router.process.admission_settings import AdmissionSettings
from baton_router.process.http_settings import HttpSettings
from tests.integration.http_router import client_of, error_of, http_cluster
from tests.integration.router_cluster import ANSWER, PROMPT, TOKENIZER, pair, serving
from tests.integration.scripted_worker import ScriptedWorker, until

COMPLETIONS = "/v1/completions"
TENANTS = HttpSettings(api_keys=("ours", "theirs"))
NUM_PROMPT_TOKENS = len(TOKENIZER.encode(PROMPT))


async def complete(client: httpx.AsyncClient, name: str, key: str = "", **body: Any) -> httpx.Response:
    headers = {"x-request-id": name, **bearer(key)}
    asked = {"prompt": PROMPT, "max_tokens": 3, **body}
    return await client.post(COMPLETIONS, json=asked, headers=headers)


def bearer(key: str) -> Mapping[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


def report(worker: ScriptedWorker, sources: TokenSources) -> None:
    """Say what the worker did for the last request it was given, over the 0.5 s before now."""
    spec = next(command.spec for command in worker.commands if hasattr(command, "spec"))
    phases = (
        Phase(name=PhaseName.TRANSFER, start_s=9.5, end_s=9.75, num_bytes=4096, peer="p1"),
        Phase(name=PhaseName.DECODE, start_s=9.75, end_s=10.0, num_tokens=2),
    )
    message = PhaseReport(request_id=spec.request_id, phases=phases, sources=sources, sent_s=10.0)
    worker.client.send(worker.router_id, message)


async def test_a_request_is_explained_over_all_hops() -> None:
    prefiller, decoder = pair(answers=[ANSWER])
    async with http_cluster(prefiller, decoder, split="always") as client:
        answered = await complete(client, "a/b c")
        path = "/debug/requests/" + answered.json()["id"].replace(" ", "%20")
        report(decoder, TokenSources(num_local_cache=1, num_remote=NUM_PROMPT_TOKENS - 1))
        await until_told(client, path)
        told = (await client.get(path)).json()
        assert (told["request_id"], told["state"], told["code"]) == ("a/b c", "finished", None)
        counts = [told[f"num_{name}_tokens"] for name in ("prompt", "cached", "output")]
        assert counts == [NUM_PROMPT_TOKENS, 3, 3]
        assert 0 < told["first_token_s"] < told["duration_s"] <= told["age_s"]
        router, worker = told["hops"]
        assert router["process"] == "router"
        names = [phase["name"] for phase in router["phases"]]
        assert [name for name in names if name in ("tokenize", "place", "first_token", "finish")] == [
            *("tokenize", "place", "first_token", "finish")
        ]
        assert all(0 <= one["start_s"] <= one["end_s"] <= told["duration_s"] for one in router["phases"])
        assert (worker["process"], worker["sources"]["num_remote"]) == ("d1", NUM_PROMPT_TOKENS - 1)
        transfer, decode = worker["phases"]
        assert (transfer["name"], transfer["peer"], transfer["num_bytes"]) == ("transfer", "p1", 4096)
        assert abs(transfer["end_s"] - decode["start_s"]) < 1e-6
        (decision,) = told["decisions"]
        chosen = decision["chosen"]
        assert (chosen["prefill"], chosen["decode"]) == ("p1", "d1")
        assert decision["reason"]
        assert decision["num_candidates"] >= len(decision["candidates"]) >= 1


async def until_told(client: httpx.AsyncClient, path: str) -> None:
    """Wait for the worker's part."""
    hops: list[Any] = []
    while len(hops) < 2:
        hops = (await client.get(path)).json()["hops"]


async def test_the_latest_requests_are_listed_the_last_one_first() -> None:
    async with http_cluster(ScriptedWorker("w1", answers=[ANSWER])) as client:
        for name in ("one", "two", "three"):
            await complete(client, name)
        await complete(client, "refused", model="unknown")
        listed = (await client.get("/debug/requests?limit=2")).json()["requests"]
        assert [one["request_id"] for one in listed] == ["three", "two"]
        assert all(one["state"] == "finished" and one["num_output_tokens"] == 3 for one in listed)
        spans = {span["name"]: span for span in listed[0]["spans"]}
        assert spans["first_token"]["process"] == "router"
        assert spans["tokenize"]["end_s"] > spans["tokenize"]["start_s"]
        for limit in ("0", "257", "x"):
            status, _, message = error_of(await client.get(f"/debug/requests?limit={limit}"))
            assert status == 400
            assert "limit" in message


async def test_a_call_of_several_prompts_has_an_id_for_each() -> None:
    async with http_cluster(ScriptedWorker("w1", answers=[ANSWER] * 2)) as client:
        answered = await complete(client, "both", prompt=[PROMPT, PROMPT])
        status, _, message = error_of(await client.get(f"/debug/requests/{answered.json()['id']}"))
        assert status == 404
        assert message.endswith("allowed: both-0, both-1 and so on, one for each prompt of that call")
        for name in ("both-0", "cmpl-both-1", "embd-both-1", "rerank-both-0"):
            assert (await client.get(f"/debug/requests/{name}")).status_code == 200


async def test_a_request_that_waits_and_one_that_failed_are_told_as_such() -> None:
    worker = ScriptedWorker("w1", answers=[ANSWER], num_steps=1)
    async with serving() as server, client_of(server) as client:
        assert (await complete(client, "early")).status_code == 503
        told = (await client.get("/debug/requests/early")).json()
        assert (told["state"], told["code"]) == ("failed", ErrorCode.UNAVAILABLE)
        assert told["first_token_s"] is None
        assert "no decode worker" in told["message"]
        async with (
            worker.joined(server.grpc_port),
            client.stream("POST", COMPLETIONS, json={"prompt": "x", "request_id": "open", "stream": True}),
        ):
            await until(lambda: bool(worker.commands))
            told = (await client.get("/debug/requests/open")).json()
            assert (told["state"], told["code"]) == ("running", None)
            assert told["duration_s"] == told["age_s"] > 0


async def test_a_key_sees_its_own_requests_and_an_operator_all() -> None:
    async def scenario(settings: HttpSettings, *, sees_all: bool) -> None:
        async with http_cluster(ScriptedWorker("w1", answers=[ANSWER]), http=settings) as client:
            for key in ("ours", "theirs"):
                await complete(client, f"of {key}", key)
            for key, other in (("ours", "theirs"), ("theirs", "ours")):
                own = await client.get(f"/debug/requests/of {key}", headers=bearer(key))
                assert own.status_code == 200
                foreign = await client.get(f"/debug/requests/of {other}", headers=bearer(key))
                if sees_all:
                    assert foreign.status_code == 200
                else:
                    assert error_of(foreign)[:2] == (404, "request_id")
                listed = (await client.get("/debug/requests", headers=bearer(key))).json()["requests"]
                assert len(listed) == (2 if sees_all else 1)
            for name in ("nobody", "", "chatcmpl-"):
                unknown = await client.get(f"/debug/requests/{name}", headers=bearer("ours"))
                assert error_of(unknown)[:2] == (404, "request_id")

    await scenario(TENANTS, sees_all=False)
    operators = HttpSettings(api_keys=TENANTS.api_keys, enable_operator_routes=True)
    await scenario(operators, sees_all=True)


async def test_the_cluster_is_told_as_the_dashboard_draws_it() -> None:
    prefiller, decoder = pair(answers=[ANSWER])
    async with http_cluster(prefiller, decoder, split="always") as client:
        await complete(client, "one")
        report(decoder, TokenSources(num_remote=NUM_PROMPT_TOKENS))
        await until_told(client, "/debug/requests/one")
        with patch("time.time", return_value=0.0):
            told = (await client.get("/debug/cluster")).json()
        assert 0.0 < told["uptime_s"] < 600.0
        assert (told["models"], told["is_ready"], told["num_waiting"]) == (["tiny"], True, 0)
        assert {one["worker_id"]: one["role"] for one in told["workers"]} == {"d1": "decode", "p1": "prefill"}
        assert {one["state"] for one in told["workers"]} == {"ready"}
        totals = told["totals"]
        assert (totals["num_finished"], totals["num_failed"]) == (1, 0)
        assert (totals["num_prompt_tokens"], totals["num_generated_tokens"]) == (NUM_PROMPT_TOKENS, 3)
        assert (totals["num_transfers"], totals["transfer_bytes"], totals["transfer_s"]) == (1, 4096, 0.25)
        assert (totals["num_remote"], totals["num_computed"]) == (NUM_PROMPT_TOKENS, 0)
        assert [(one["kind"], one["count"]) for one in told["placements"]] == [("split", 1)]
        assert {"outcome": "admitted", "count": 1} in told["admissions"]


async def test_the_last_minutes_are_told_to_who_comes_later() -> None:
    settings = AdmissionSettings(slo=Slo(ttft_s=30.0))
    prefiller, decoder = pair(answers=[ANSWER])
    async with http_cluster(prefiller, decoder, split="always", admission=settings) as client:
        for name in ("one", "two"):
            await complete(client, name)
        assert (await complete(client, "late", max_tokens=1, model="unknown")).status_code == 404
        told = await history_with(client, num_samples=2)
        assert (told["latencies"]["num_finished"], told["latencies"]["num_failed"]) == (2, 0)
        ttft, tpot, itl, e2e = told["latencies"]["percentiles"]
        assert [one["count"] for one in (ttft, tpot, itl, e2e)] == [2, 2, 4, 2]
        assert 0 < ttft["p50_s"] <= ttft["p99_s"] <= 1.02 * e2e["p99_s"]
        assert (ttft["slo_s"], ttft["share_within_slo"], ttft["is_slo_attained"]) == (30.0, 1.0, True)
        assert e2e["slo_s"] is None
        first, *_, last = told["samples"]
        assert last["at_s"] - first["at_s"] == pytest.approx(told["interval_s"], abs=0.5)
        assert sum(sample["finished_per_s"] for sample in told["samples"]) > 0
        assert last["loads"]["kv_usage"].keys() == {"decode", "prefill"}
        assert last["loads"]["ttft_p90_s"] == pytest.approx(ttft["p90_s"])
        rest = (await client.get(f"/debug/history?since={first['at_s']}")).json()["samples"]
        assert rest[0] == told["samples"][1]
        for since in ("-1", "nan", "x"):
            status, _, message = error_of(await client.get(f"/debug/history?since={since}"))
            assert status == 400
            assert "since" in message


async def history_with(client: httpx.AsyncClient, num_samples: int) -> dict[str, Any]:
    """Wait until there are so many samples."""
    told: dict[str, Any] = {"samples": []}
    while len(told["samples"]) < num_samples:
        await asyncio.sleep(0.1)
        told = (await client.get("/debug/history")).json()
    return told


async def test_a_request_beyond_its_slo_is_told_as_an_outlier() -> None:
    async with http_cluster(ScriptedWorker("w1", answers=[ANSWER])) as client:
        await complete(client, "in time")
        headers = {"x-request-id": "late", "x-slo-tpot-ms": "0.000001"}
        asked = {"prompt": PROMPT, "max_tokens": 3}
        assert (await client.post(COMPLETIONS, json=asked, headers=headers)).status_code == 200
        late, in_time = (await client.get("/debug/requests")).json()["requests"]
        assert in_time["outliers"] == []
        (outlier,) = late["outliers"]
        assert (outlier["metric"], outlier["limit"]) == ("tpot", "slo")
        assert outlier["limit_s"] == pytest.approx(1e-9)
        assert outlier["value_s"] == late["per_token_s"] > 0


async def test_tokens_are_counted_once_and_timed_one_by_one() -> None:
    prefiller, decoder = pair(answers=[ANSWER])
    async with http_cluster(prefiller, decoder, split="always") as client:
        await complete(client, "one", max_tokens=5)
        await complete(client, "two", max_tokens=1)
        told = await samples(client)
        assert told["vllm:generation_tokens_total"] == 6
        assert told["vllm:prompt_tokens_total"] == 2 * NUM_PROMPT_TOKENS
        assert told["vllm:inter_token_latency_seconds_count"] == 4
        assert told["vllm:time_to_first_token_seconds_count"] == 2
        assert told["vllm:request_queue_time_seconds_sum"] >= 1.0, "both workers said 0.5 s"
        assert told["vllm:request_params_max_tokens_sum"] == 6
        assert told["baton_placements_total"] == 2
        assert told["baton_admissions_total"] == 2
        assert told["baton_workers"] == 2


async def samples(client: httpx.AsyncClient) -> dict[str, float]:
    """By name, summed over all labels; of histograms sums and counts."""
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families((await client.get("/metrics")).text):
        for sample in family.samples:
            if "le" not in sample.labels:
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return sums
