"""Workers that hold sequences of different lengths, with a real router: no stream is cut by the smallest."""

from __future__ import annotations

from baton import LLM
from baton_core.sessions.worker_info import Role
from baton_engine.sizing import KVCacheSettings
from baton_proto.v1 import baton_pb2 as pb
from tests.e2e.calls import answer, draw_prompt, greedy
from tests.integration.http_router import http_cluster
from tests.integration.router_cluster import ANSWER, MODEL, PROMPT, ask, cluster, error_of, tokens_of
from tests.integration.scripted_worker import ScriptedWorker
from tests.integration.worker_cluster import KV_CACHE_BYTES, Said, routing, working

SMALL, LARGE = 200, 300


def holding(max_model_len: int) -> dict[str, KVCacheSettings]:
    """Fields of `EngineSettings`."""
    cache = KVCacheSettings(kv_cache_memory_bytes=KV_CACHE_BYTES, max_model_len=max_model_len)
    return {"kv_cache": cache}


async def test_a_stream_that_outgrows_its_worker_ends_at_the_largest_limit(said: Said) -> None:
    """Round robin begins with the small worker."""
    prompt = draw_prompt(40, seed=1)
    params = greedy(LARGE - len(prompt))
    expected = LLM(str(MODEL), dtype="float32").generate(prompt, params, use_tqdm=False)[0].outputs
    async with (
        routing(said, split="never", routing_policy="round-robin") as cluster,
        working(Role.MIXED, cluster.port, name="a-small", engine=holding(SMALL)),
        working(Role.MIXED, cluster.port, name="b-large", engine=holding(LARGE)),
    ):
        await cluster.wait_for_idle("a-small", "b-large")
        call = cluster.ask("r", prompt, greedy(LARGE))
        outputs, _ = answer([event async for event in call])
        assert [one.token_ids for one in outputs] == [one.token_ids for one in expected]
        assert outputs[0].finish_reason == "length"
        assert set(said.speakers) >= {"a-small", "b-large"}
        await cluster.wait_for_idle("a-small", "b-large")


async def test_the_limit_is_that_of_the_largest_worker_on_every_interface() -> None:
    workers = [
        ScriptedWorker(f"w{limit}", Role.MIXED, max_model_len=limit, num_blocks=1000)
        for limit in (60, 1000, 500)
    ]
    async with http_cluster(*workers) as client:
        listed = (await client.get("/v1/models")).json()["data"]
        assert [one["max_model_len"] for one in listed] == [1000]
        reply = (await client.post("/tokenize", json={"prompt": "a"})).json()
        assert reply["max_model_len"] == 1000


async def test_a_prompt_that_no_worker_holds_is_refused_with_the_largest_limit() -> None:
    workers = [ScriptedWorker(f"w{limit}", answers=[ANSWER], max_model_len=limit) for limit in (30, 90)]
    async with cluster(*workers) as stub:
        info = await stub.GetModelInfo(pb.GetModelInfoRequest())
        assert info.max_model_len == 90
        code, message = await error_of(stub.Generate(ask("word " * 200)))
        assert code == "INVALID_ARGUMENT"
        assert "allowed: 1 to 89 tokens" in message
        assert not any(worker.commands for worker in workers)
        await tokens_of(stub.Generate(ask(PROMPT)))
        assert not workers[0].commands
