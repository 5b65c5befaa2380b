"""The metrics that dashboards and autoscalers made for vLLM read: names, types, labels and bounds.

Each series is exported by one service: `REQUEST_FAMILIES` by routers, `ENGINE_FAMILIES` by workers. For a
worker without metrics of its own its routers export its heartbeats: `REPORTED_FAMILIES`.

Source: vLLM 0.32, "Production Metrics" of its documentation.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from baton_core.blocks.block_residency import RESIDENCY_BOUNDS
from baton_core.distribution import Distribution
from baton_core.sessions.worker_info import EngineFigures
from baton_core.step_work import StepWork
from baton_service.exposition import Exposition, Family, Kind

ENGINE: Final = ("model_name", "engine")
FIRST_TOKEN_BOUNDS: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_GAP_BOUNDS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
LATENCY_BOUNDS: Final = (
    *(0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0),
    *(60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
"""vLLM's, with finer ones below 0.3 s."""
TOKENS_BOUNDS: Final = tuple(
    float(digit * 10**power) for power in range(7) for digit in (1, 2, 5) if digit * 10**power <= 1_000_000
)
SEQUENCES_BOUNDS: Final = (1.0, 2.0, 5.0, 10.0, 20.0)
STEP_BOUNDS: Final = (1.0, *(2.0**power for power in range(3, 15)))
TRANSFER_BOUNDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0)
BYTES_BOUNDS: Final = tuple(2.0**power for power in range(11, 35, 2))
DESCRIPTORS_BOUNDS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0)
SLEEP_STATES: Final = ("awake", "weights_offloaded", "discard_all")
"""State of an engine by the level of its sleep."""


def _vllm(name: str, kind: Kind, text: str, *labels: str) -> Family:
    return Family(name=f"vllm:{name}", kind=kind, text=text, labels=(*ENGINE, *labels))


_G, _C, _H = Kind.GAUGE, Kind.COUNTER, Kind.HISTOGRAM

# --- of requests ---

PROMPT_TOKENS: Final = _vllm("prompt_tokens", _C, "Prompt tokens of requests that finished")
PROMPT_TOKENS_CACHED: Final = _vllm("prompt_tokens_cached", _C, "Prompt tokens of those that were cached")
GENERATION_TOKENS: Final = _vllm("generation_tokens", _C, "Tokens that clients were sent")
REQUEST_SUCCESS: Final = _vllm("request_success", _C, "Sequences by reason of end", "finished_reason")
TIME_TO_FIRST_TOKEN: Final = _vllm("time_to_first_token_seconds", _H, "From the call to the first token")
INTER_TOKEN_LATENCY: Final = _vllm("inter_token_latency_seconds", _H, "Between two tokens of a sequence")
TIME_PER_OUTPUT_TOKEN: Final = _vllm(
    "request_time_per_output_token_seconds", _H, "Mean time per token after the first"
)
E2E_LATENCY: Final = _vllm("e2e_request_latency_seconds", _H, "From the call to the end")
QUEUE_TIME: Final = _vllm("request_queue_time_seconds", _H, "Waiting, at the router and for a first step")
INFERENCE_TIME: Final = _vllm("request_inference_time_seconds", _H, "From the first step to the end")
PREFILL_TIME: Final = _vllm("request_prefill_time_seconds", _H, "From the first step to the first token")
DECODE_TIME: Final = _vllm("request_decode_time_seconds", _H, "From the first token to the last")
REQUEST_PROMPT_TOKENS: Final = _vllm("request_prompt_tokens", _H, "Prompt tokens of a request")
REQUEST_GENERATION_TOKENS: Final = _vllm("request_generation_tokens", _H, "Tokens generated for a request")
MAX_GENERATION_TOKENS: Final = _vllm(
    "request_max_num_generation_tokens", _H, "Tokens of the longest sequence of a request"
)
PREFILL_COMPUTED: Final = _vllm(
    "request_prefill_kv_computed_tokens", _H, "Prompt tokens of a request that were not cached"
)
PARAMS_N: Final = _vllm("request_params_n", _H, "Sequences that a request asks for")
PARAMS_MAX_TOKENS: Final = _vllm("request_params_max_tokens", _H, "Most tokens that a request asks for")

# --- of engines ---

NUM_RUNNING: Final = _vllm("num_requests_running", _G, "Sequences in the running batch")
NUM_WAITING: Final = _vllm(
    "num_requests_waiting", _G, "Sequences that wait to be scheduled, or for what they need before that"
)
WAITING_BY_REASON: Final = _vllm(
    "num_requests_waiting_by_reason", _G, "Of those that wait, by what they wait for", "reason"
)
KV_USAGE: Final = _vllm("kv_cache_usage_perc", _G, "Share of KV blocks in use, 0 to 1")
CACHE_CONFIG: Final = _vllm(
    "cache_config_info",
    _G,
    "The KV cache as it is set up; always 1",
    "block_size",
    "num_gpu_blocks",
    "cache_dtype",
    "enable_prefix_caching",
)
LORA_REQUESTS: Final = _vllm(
    "lora_requests_info",
    _G,
    "Names of the LoRA adapters of running and waiting requests; the value is the time",
    "max_lora",
    "waiting_lora_adapters",
    "running_lora_adapters",
)
SLEEP_STATE: Final = _vllm("engine_sleep_state", _G, "1 for the state that the engine is in", "sleep_state")
PREFIX_QUERIES: Final = _vllm("prefix_cache_queries", _C, "Prompt tokens looked up in the prefix cache")
PREFIX_HITS: Final = _vllm("prefix_cache_hits", _C, "Prompt tokens found in the prefix cache")
EXTERNAL_QUERIES: Final = _vllm(
    "external_prefix_cache_queries", _C, "Prompt tokens not in this cache, of requests with transfers"
)
EXTERNAL_HITS: Final = _vllm("external_prefix_cache_hits", _C, "Prompt tokens copied from other workers")
TOKENS_BY_SOURCE: Final = _vllm(
    "prompt_tokens_by_source", _C, "Prompt tokens that this engine got, by where from", "source"
)
PREEMPTIONS: Final = _vllm("num_preemptions", _C, "Sequences whose blocks were taken for others")
ITERATION_TOKENS: Final = _vllm("iteration_tokens_total", _H, "Tokens that a step computes")
BLOCK_RESIDENCY: Final = (
    _vllm("kv_block_lifetime_seconds", _H, "From a KV block's allocation to its eviction; sampled"),
    _vllm("kv_block_idle_before_evict_seconds", _H, "From its last access to its eviction; sampled"),
    _vllm("kv_block_reuse_gap_seconds", _H, "Between two accesses to a KV block; sampled"),
)
ESTIMATED_FLOPS: Final = _vllm(
    "estimated_flops_per_gpu", _C, "Floating-point operations of a GPU, by the model's shape"
)
ESTIMATED_READ: Final = _vllm(
    "estimated_read_bytes_per_gpu", _C, "Bytes that a GPU reads from memory, by the model's shape"
)
ESTIMATED_WRITTEN: Final = _vllm(
    "estimated_write_bytes_per_gpu", _C, "Bytes that a GPU writes to memory, by the model's shape"
)
DRAFTS: Final = _vllm("spec_decode_num_drafts", _C, "Drafts that steps verified")
DRAFT_TOKENS: Final = _vllm("spec_decode_num_draft_tokens", _C, "Tokens of these drafts")
ACCEPTED_TOKENS: Final = _vllm("spec_decode_num_accepted_tokens", _C, "Drafted tokens that were right")
ACCEPTED_PER_POSITION: Final = _vllm(
    "spec_decode_num_accepted_tokens_per_pos", _C, "Of these, by their place in a draft", "position"
)
XFER_TIME: Final = _vllm("nixl_xfer_time_seconds", _H, "A request's transfer, as long as blocks were copied")
XFER_BYTES: Final = _vllm("nixl_bytes_transferred", _H, "Bytes of a request's transfer")
XFER_DESCRIPTORS: Final = _vllm("nixl_num_descriptors", _H, "Blocks of a request's transfer")
XFER_FAILED: Final = _vllm("nixl_num_failed_transfers", _C, "Transfers that did not bring all blocks")
XFER_EXPIRED: Final = _vllm("nixl_num_kv_expired_reqs", _C, "Requests whose blocks were not pulled in time")

REQUEST_FAMILIES: Final = (
    *(PROMPT_TOKENS, PROMPT_TOKENS_CACHED, GENERATION_TOKENS, REQUEST_SUCCESS, TIME_TO_FIRST_TOKEN),
    INTER_TOKEN_LATENCY,
    *(TIME_PER_OUTPUT_TOKEN, E2E_LATENCY, QUEUE_TIME, INFERENCE_TIME, PREFILL_TIME, DECODE_TIME),
    *(REQUEST_PROMPT_TOKENS, REQUEST_GENERATION_TOKENS, MAX_GENERATION_TOKENS, PARAMS_N, PARAMS_MAX_TOKENS),
    PREFILL_COMPUTED,
)
REPORTED_FAMILIES: Final = (
    *(NUM_RUNNING, NUM_WAITING, WAITING_BY_REASON, KV_USAGE, CACHE_CONFIG, SLEEP_STATE, LORA_REQUESTS),
    *(PREFIX_QUERIES, PREFIX_HITS, EXTERNAL_QUERIES, EXTERNAL_HITS, TOKENS_BY_SOURCE),
    *(PREEMPTIONS, ITERATION_TOKENS, DRAFTS, DRAFT_TOKENS, ACCEPTED_TOKENS, ACCEPTED_PER_POSITION),
    *(*BLOCK_RESIDENCY, ESTIMATED_FLOPS, ESTIMATED_READ, ESTIMATED_WRITTEN),
)
ENGINE_FAMILIES: Final = (
    *REPORTED_FAMILIES,
    *(XFER_TIME, XFER_BYTES, XFER_DESCRIPTORS, XFER_FAILED, XFER_EXPIRED),
)


def report_waiting(page: Exposition, engine: tuple[str, str], num_waiting: int, num_deferred: int) -> None:
    """Add sequences waiting for a place in a step and deferred ones, apart and together."""
    page.add(NUM_WAITING, num_waiting + num_deferred, *engine)
    page.add(WAITING_BY_REASON, num_waiting, *engine, "capacity")
    page.add(WAITING_BY_REASON, num_deferred, *engine, "deferred")


def report_figures(page: Exposition, engine: tuple[str, str], figures: EngineFigures) -> None:
    """Add what an engine has counted, whether it sleeps, and the adapters of its requests."""
    for level, state in enumerate(SLEEP_STATES):
        page.add(SLEEP_STATE, figures.sleep_level == level, *engine, state)
    # Readers take the series of adapters with the largest value, a time.
    names = ",".join(figures.waiting_adapters), ",".join(figures.running_adapters)
    page.add(LORA_REQUESTS, time.time() if figures.max_loras else 0, *engine, str(figures.max_loras), *names)
    page.add(PREFIX_QUERIES, figures.num_queried_tokens, *engine)
    page.add(PREFIX_HITS, figures.num_hit_tokens, *engine)
    page.add(EXTERNAL_QUERIES, figures.num_remote_queried_tokens, *engine)
    page.add(EXTERNAL_HITS, figures.num_remote_tokens, *engine)
    page.add(TOKENS_BY_SOURCE, figures.num_computed_tokens, *engine, "local_compute")
    page.add(TOKENS_BY_SOURCE, figures.num_cached_tokens, *engine, "local_cache_hit")
    page.add(TOKENS_BY_SOURCE, figures.num_remote_tokens, *engine, "external_kv_transfer")
    page.add(PREEMPTIONS, figures.num_preemptions, *engine)
    if len(figures.step_counts) == len(STEP_BOUNDS) + 1:  # a worker of another version may have other bounds
        steps = Distribution.of(STEP_BOUNDS, figures.step_counts, figures.num_step_tokens)
        page.add(ITERATION_TOKENS, steps, *engine)
    for family, stays in zip(BLOCK_RESIDENCY, figures.block_residency, strict=False):
        if len(stays.counts) == len(RESIDENCY_BOUNDS) + 1:
            page.add(family, Distribution.of(RESIDENCY_BOUNDS, stays.counts, stays.total), *engine)
    for family, value in work_samples(figures.work):
        page.add(family, value, *engine)
    if figures.num_accepted_per_position:
        page.add(DRAFTS, figures.num_drafts, *engine)
        page.add(DRAFT_TOKENS, figures.num_draft_tokens, *engine)
        page.add(ACCEPTED_TOKENS, figures.num_accepted_tokens, *engine)
    for position, count in enumerate(figures.num_accepted_per_position):
        page.add(ACCEPTED_PER_POSITION, count, *engine, str(position))


def work_samples(work: StepWork | None) -> Sequence[tuple[Family, float]]:
    """Return the counters of estimated work, where it is estimated."""
    if work is None:
        return ()
    return (
        (ESTIMATED_FLOPS, work.flops),
        (ESTIMATED_READ, work.read_bytes),
        (ESTIMATED_WRITTEN, work.written_bytes),
    )
