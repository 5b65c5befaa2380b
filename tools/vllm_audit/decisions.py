"""Items that differ on purpose: why, and how to have the other behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

DECISIONS: Final[Mapping[str, str]] = {
    "block_size": "32 tokens serve a CPU and a GPU alike; `--block-size 16` is vLLM's on a GPU",
    "gpu_memory_utilization": (
        "other processes' memory is not counted as the engine's; `--kv-cache-memory-bytes` says the size"
    ),
    "max_model_len": (
        "a model whose context is longer than the KV cache serves what fits, and the log says so; with "
        "`--max-model-len` a length that does not fit is an error"
    ),
    "max_num_batched_tokens": "small chunks delay running sequences less; `--max-num-batched-tokens` sets it",
    "max_num_seqs": "a fleet adds workers instead; `--max-num-seqs` sets more",
    "logprob_token_ids": "a rank is the one among all tokens, as in `logprobs`; the list's order is its own",
    "metrics": (
        "a request's tokens may be computed by several workers, so `num_preemptions` is counted for each: "
        "the metric `vllm:num_preemptions_total`"
    ),
    "VLLM_ENABLE_V1_MULTIPROCESSING": (
        "nothing is there to turn off: `LLM` is in one process, unless `prefill_workers` or `decode_workers` "
        "give it others"
    ),
    "serve: address": (
        "a server without a key is for its own machine; `--host 0.0.0.0` listens on all interfaces, and "
        "`baton as-vllm vllm serve` does"
    ),
    "serve: processes": (
        "prefill and decode are apart; `--mixed 1 --prefill-workers 0 --decode-workers 0` is one engine, and "
        "`baton as-vllm vllm serve` has one"
    ),
    "serve --api-key": (
        "a key keeps what a server does from those who lack it; `--open-metrics` opens `/metrics`"
    ),
    "POST /sleep": "a request is not lost for a parameter that was left out; `?mode=abort` ends them",
    "POST /pause": (
        "what a client gets is whole or an error; `?mode=wait` lets requests end, `?mode=keep` keeps them"
    ),
    "X-Request-Id beside request_id": (
        "proxies set the header, and the body is the client's own; without `request_id` the header names it"
    ),
    "continuous_usage_stats alone": "what is asked for is sent; `include_usage` adds the last chunk",
}
"""By the item's name; a flag has the decision of its field."""


def decision_of(item: str) -> str:
    """Return why an item differs, and nothing for one that must not."""
    return DECISIONS.get(item) or DECISIONS.get(item.removeprefix("--").replace("-", "_"), "")
