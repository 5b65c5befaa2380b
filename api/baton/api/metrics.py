"""Figures of an `LLM`, in the shape of vLLM's documented metrics, and the recorder that keeps them."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from baton.api.output_builder import OutputBuilder
from baton.api.pooled_output_builder import PooledOutputBuilder
from baton.config.vllm_config import CacheConfig
from baton.executors.executor import ExecutorLoad
from baton_core.distribution import Distribution
from baton_core.requests.finish import FinishReason
from baton_service import vllm_metrics as vllm
from baton_worker.core.speculation.draft_counts import DraftCounts

_log = logging.getLogger(__name__)
_TIME_PER_TOKEN_S: Final = tuple(bound for bound in vllm.TOKEN_GAP_BOUNDS if bound >= 0.01)
_LATENCY_S: Final = tuple(bound for bound in vllm.LATENCY_BOUNDS if bound >= 0.3)
"""vLLM's bounds, without the finer ones that servers have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """A number that only grows."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Vector:
    """Several such numbers, by position."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    values: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """The current value of a metric."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """The number of values up to each bound."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    count: int
    sum: float
    buckets: Mapping[str, int]
    """Cumulative, by the bound as text; the last bound is `+Inf`."""


Metric: TypeAlias = Counter | Vector | Gauge | Histogram


class GenerationMetrics:
    """Counters and latencies of the requests of one `LLM`."""

    def __init__(self, model_name: str) -> None:
        self._labels = {"model_name": model_name, "engine": "0"}
        self._counts = dict.fromkeys(
            (
                *("prompt_tokens", "prompt_tokens_cached", "generation_tokens"),
                *("prefix_cache_queries", "prefix_cache_hits"),
            ),
            0,
        )
        self._logged: tuple[float, int, int] = (time.monotonic(), 0, 0)
        self._ends = dict.fromkeys(FinishReason, 0)
        self._values = {
            "time_to_first_token_seconds": Distribution(vllm.FIRST_TOKEN_BOUNDS),
            "request_time_per_output_token_seconds": Distribution(_TIME_PER_TOKEN_S),
            "e2e_request_latency_seconds": Distribution(_LATENCY_S),
            "request_queue_time_seconds": Distribution(_LATENCY_S),
            "request_inference_time_seconds": Distribution(_LATENCY_S),
            "request_prefill_time_seconds": Distribution(_LATENCY_S),
            "request_decode_time_seconds": Distribution(_LATENCY_S),
            "request_prompt_tokens": Distribution(vllm.TOKENS_BOUNDS),
            "request_prefill_kv_computed_tokens": Distribution(vllm.TOKENS_BOUNDS),
            "request_generation_tokens": Distribution(vllm.TOKENS_BOUNDS),
            "request_max_num_generation_tokens": Distribution(vllm.TOKENS_BOUNDS),
            "inter_token_latency_seconds": Distribution(vllm.TOKEN_GAP_BOUNDS),
            "request_params_n": Distribution(vllm.SEQUENCES_BOUNDS),
            "request_params_max_tokens": Distribution(vllm.TOKENS_BOUNDS),
        }

    def finish(self, builder: OutputBuilder | PooledOutputBuilder) -> None:
        """Take a request that has just ended."""
        for reason in builder.finish_reasons:
            self._ends[FinishReason(reason)] += 1
        finished, params = builder.finished, builder.spec.params
        if finished is None:
            return
        timings, num_tokens = finished.timings, finished.num_output_tokens
        self._counts["prompt_tokens"] += finished.num_prompt_tokens
        self._counts["prompt_tokens_cached"] += finished.num_cached_tokens
        self._counts["generation_tokens"] += num_tokens
        if params.reads_prefix_cache:
            self._counts["prefix_cache_queries"] += finished.num_prompt_tokens
            self._counts["prefix_cache_hits"] += finished.num_cached_tokens
        self._add("time_to_first_token_seconds", timings.first_token_s)
        self._add("request_time_per_output_token_seconds", timings.per_token_s)
        self._add("e2e_request_latency_seconds", timings.total_s)
        self._add("request_queue_time_seconds", timings.queue_s)
        self._add("request_inference_time_seconds", timings.total_s - timings.queue_s)
        self._add("request_prefill_time_seconds", timings.prefill_s)
        self._add("request_decode_time_seconds", timings.total_s - timings.first_token_s)
        self._add("request_prompt_tokens", finished.num_prompt_tokens)
        self._add(
            "request_prefill_kv_computed_tokens", finished.num_prompt_tokens - finished.num_cached_tokens
        )
        self._add("request_generation_tokens", num_tokens)
        self._add("request_max_num_generation_tokens", builder.num_longest)
        for gap_s, num_tokens in builder.token_gaps:
            self._values["inter_token_latency_seconds"].add(max(gap_s, 0.0), num_tokens)
        self._add("request_params_n", params.n)
        if params.max_tokens is not None:
            self._add("request_params_max_tokens", params.max_tokens)

    def read(self, load: ExecutorLoad, cache: CacheConfig) -> list[Metric]:
        """Return all metrics, under vLLM's names."""
        labels = self._labels
        gauges = {
            "num_requests_running": float(load.num_running),
            "num_requests_waiting": float(load.num_waiting + load.num_deferred),
            "kv_cache_usage_perc": load.kv_cache_usage,
        }
        counts = dict(self._counts)
        if load.num_preemptions is not None:
            counts["num_preemptions"] = load.num_preemptions
        metrics: list[Metric] = [_gauge(name, labels, value) for name, value in gauges.items()]
        metrics += [
            Counter(name=f"vllm:{name}", labels=labels, value=value) for name, value in counts.items()
        ]
        for reason, count in self._ends.items():
            ended = {**labels, "finished_reason": reason.value}
            metrics.append(Counter(name="vllm:request_success", labels=ended, value=count))
        metrics += [_histogram(f"vllm:{name}", labels, values) for name, values in self._values.items()]
        for cause, waiting in (("capacity", load.num_waiting), ("deferred", load.num_deferred)):
            metrics.append(_gauge("num_requests_waiting_by_reason", {**labels, "reason": cause}, waiting))
        metrics.append(_gauge("cache_config_info", {**labels, **_labels_of(cache)}, 1))
        for family, stays in zip(vllm.BLOCK_RESIDENCY, load.block_residency, strict=False):
            metrics.append(_histogram(family.name, labels, stays))
        for family, amount in vllm.work_samples(load.work):
            metrics.append(Counter(name=family.name, labels=labels, value=int(amount)))
        if load.step_tokens is not None:
            metrics += self._metrics_of_steps(load.step_tokens)
        return metrics + ([] if load.drafts is None else _metrics_of_drafts(labels, load.drafts))

    def _metrics_of_steps(self, step_tokens: Distribution) -> list[Metric]:
        """Figures of an engine in this process."""
        cached = self._counts["prompt_tokens_cached"]
        sources = {
            "local_compute": self._counts["prompt_tokens"] - cached,
            "local_cache_hit": cached,
            "external_kv_transfer": 0,
        }
        name = "vllm:prompt_tokens_by_source"
        return [
            _histogram("vllm:iteration_tokens_total", self._labels, step_tokens),
            *(
                Counter(name=name, labels={**self._labels, "source": source}, value=count)
                for source, count in sources.items()
            ),
        ]

    def log(self, load: ExecutorLoad) -> None:
        """Log how the engine does, and its speed since the last time."""
        tokens = (self._counts["prompt_tokens"], self._counts["generation_tokens"])
        (then, *before), self._logged = self._logged, (time.monotonic(), *tokens)
        elapsed_s = max(self._logged[0] - then, 1e-9)
        _log.info(
            "%d running, %d waiting, KV cache %.1f %%, %.1f prompt tokens/s, %.1f generated tokens/s",
            load.num_running,
            load.num_waiting,
            100 * load.kv_cache_usage,
            *((new - old) / elapsed_s for new, old in zip(tokens, before, strict=True)),
        )

    def _add(self, name: str, value: float) -> None:
        self._values[name].add(max(value, 0.0))


def _gauge(name: str, labels: Mapping[str, str], value: float) -> Gauge:
    return Gauge(name=f"vllm:{name}", labels=labels, value=float(value))


def _labels_of(cache: CacheConfig) -> dict[str, str]:
    names = ("block_size", "num_gpu_blocks", "cache_dtype", "enable_prefix_caching")
    return {name: str(getattr(cache, name)) for name in names}


def _histogram(name: str, labels: Mapping[str, str], values: Distribution) -> Histogram:
    buckets = dict(values.cumulative())
    return Histogram(name=name, labels=labels, count=values.count, sum=values.total, buckets=buckets)


def _metrics_of_drafts(labels: Mapping[str, str], drafts: DraftCounts) -> list[Metric]:
    counts = {
        "num_drafts": drafts.num_drafts,
        "num_draft_tokens": drafts.num_draft_tokens,
        "num_accepted_tokens": drafts.num_accepted_tokens,
    }
    prefix, per_position = "vllm:spec_decode_", list(drafts.num_accepted_per_position)
    metrics: list[Metric] = [
        Counter(name=f"{prefix}{name}", labels=labels, value=value) for name, value in counts.items()
    ]
    return [*metrics, Vector(name=f"{prefix}num_accepted_tokens_per_pos", labels=labels, values=per_position)]
