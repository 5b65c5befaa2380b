"""Figures of an `LLM`: counted from its requests' ends, under vLLM's names."""

from __future__ import annotations

import logging
from functools import partial

import pytest

from baton.api.metrics import Counter, Gauge, GenerationMetrics, Histogram
from baton.api.output_builder import OutputBuilder
from baton.config.engine_args import EngineArgs
from baton.config.vllm_config import CacheConfig
from baton.executors.executor import ExecutorLoad
from baton_core.distribution import Distribution
from baton_core.step_work import StepWork
from baton_router.core.router_events import RequestTimings
from baton_router.requests.generation import Delta, Finished
from baton_router.text.characters import TokenTexts
from tests.builders import make_request

CACHE = CacheConfig(
    engine_args=EngineArgs(),
    block_size=16,
    gpu_memory_utilization=0.9,
    kv_cache_memory_bytes=None,
    enable_prefix_caching=True,
    num_gpu_blocks=7,
)
MORE = ("finished_reason", "reason", "source", "block_size")
"""Labels by which series of one name differ, or that one alone has."""


def ended(total_s: float, *, num_cached_tokens: int = 0, **params: object) -> OutputBuilder:
    builder = OutputBuilder(None, make_request(prompt=40, **params), partial(TokenTexts, str, bytes))
    builder.push(Delta(index=0, text="", token_ids=(1,), finish_reason=None))
    builder.push(Delta(index=0, text="", token_ids=(2, 3), finish_reason="length"))
    timings = RequestTimings(first_token_s=0.03, total_s=total_s, queue_s=0.25, prefill_s=0.5)
    builder.push(
        Finished(
            request_id="r",
            num_prompt_tokens=40,
            num_output_tokens=3,
            num_cached_tokens=num_cached_tokens,
            seed=0,
            timings=timings,
        )
    )
    return builder


def test_requests_are_counted() -> None:
    metrics = GenerationMetrics("model")
    metrics.finish(ended(0.9, num_cached_tokens=32))
    metrics.finish(ended(0.5, prompt_logprobs=1))
    aborted = OutputBuilder(None, make_request(), partial(TokenTexts, str, bytes))
    aborted.abort()
    metrics.finish(aborted)
    steps = Distribution((8.0,))
    steps.add(5)
    load = ExecutorLoad(
        num_running=2,
        num_waiting=1,
        num_deferred=2,
        kv_cache_usage=0.25,
        num_preemptions=4,
        step_tokens=steps,
        work=StepWork(flops=7e18, read_bytes=2.0, written_bytes=3.0),
        block_residency=(steps, Distribution((8.0,)), steps),
    )
    labels = {"model_name": "model", "engine": "0"}
    found = {
        (one.name, next(iter(one.labels[name] for name in MORE if name in one.labels), None)): one
        for one in metrics.read(load, CACHE)
    }
    assert found["vllm:num_requests_running", None] == Gauge(
        name="vllm:num_requests_running", labels=labels, value=2.0
    )
    assert found["vllm:prompt_tokens", None] == Counter(name="vllm:prompt_tokens", labels=labels, value=80)
    values = {name: one.value for name, one in found.items() if isinstance(one, Counter | Gauge)}
    assert values["vllm:num_requests_waiting", None] == 3
    assert values["vllm:num_requests_waiting_by_reason", "capacity"] == 1
    assert values["vllm:num_requests_waiting_by_reason", "deferred"] == 2
    assert values["vllm:prompt_tokens_by_source", "local_compute"] == 48
    assert values["vllm:prompt_tokens_by_source", "local_cache_hit"] == 32
    assert found["vllm:cache_config_info", "16"].labels == labels | {
        "block_size": "16",
        "num_gpu_blocks": "7",
        "cache_dtype": "auto",
        "enable_prefix_caching": "True",
    }
    for name, count in (("inter_token_latency_seconds", 4), ("request_max_num_generation_tokens", 2)):
        assert found[f"vllm:{name}", None].count == count  # type: ignore[union-attr]
    assert found["vllm:request_prefill_kv_computed_tokens", None].sum == 48  # type: ignore[union-attr]
    assert found["vllm:iteration_tokens_total", None].sum == 5  # type: ignore[union-attr]
    work = ("flops", "read_bytes", "write_bytes")
    assert [values[f"vllm:estimated_{name}_per_gpu", None] for name in work] == [7 * 10**18, 2, 3]
    stays = ("lifetime", "idle_before_evict", "reuse_gap")
    sums = [found[f"vllm:kv_block_{name}_seconds", None].sum for name in stays]  # type: ignore[union-attr]
    assert sums == [5, 0, 5]
    assert values["vllm:kv_cache_usage_perc", None] == 0.25
    assert values["vllm:generation_tokens", None] == 6
    assert values["vllm:prefix_cache_queries", None] == 40, "one did not look"
    assert values["vllm:prefix_cache_hits", None] == 32
    assert values["vllm:prompt_tokens_cached", None] == 32
    assert values["vllm:num_preemptions", None] == 4
    assert values["vllm:request_success", "length"] == 2
    assert values["vllm:request_success", "abort"] == 1
    names = {one.name for one in metrics.read(ExecutorLoad(), CACHE)}
    of_workers = {"num_preemptions", "iteration_tokens_total", "prompt_tokens_by_source"}
    of_workers |= {"kv_block_lifetime_seconds", "estimated_flops_per_gpu"}
    assert not names & {f"vllm:{name}" for name in of_workers}, "workers count"
    latency = found["vllm:e2e_request_latency_seconds", None]
    assert isinstance(latency, Histogram)
    assert (latency.count, latency.sum) == (2, pytest.approx(1.4))
    assert [latency.buckets[bound] for bound in ("0.3", "0.5", "0.8", "1.0", "+Inf")] == [0, 1, 1, 2, 2]


def test_the_log_tells_the_speed_since_the_last_time(caplog: pytest.LogCaptureFixture) -> None:
    metrics = GenerationMetrics("model")
    metrics.finish(ended(1.0))
    with caplog.at_level(logging.INFO, "baton.api.metrics"):
        metrics.log(ExecutorLoad(num_running=3, kv_cache_usage=0.5))
        metrics.log(ExecutorLoad())
    first, second = caplog.messages
    assert first.startswith("3 running, 0 waiting, KV cache 50.0 %, ")
    assert " 0.0 prompt tokens/s, 0.0 generated tokens/s" not in first
    assert second.endswith(" 0.0 prompt tokens/s, 0.0 generated tokens/s")
