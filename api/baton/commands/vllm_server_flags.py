"""Flags of `vllm serve` that are no engine arguments and set nothing here: taken or refused, and why.

The engine arguments of this kind are in `baton.config.fixed_engine_args`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from baton.config.fixed_engine_args import Fixed


@dataclass(frozen=True, slots=True)
class Taken:
    """A flag whose every value changes nothing."""

    reason: str
    is_switch: bool = True


TAKEN: Final[Mapping[str, Taken]] = {
    "--disable-log-stats": Taken("a router logs no figures; /metrics has them"),
    "--uvicorn-log-level": Taken("uvicorn logs nothing here; --log-level sets all lines", is_switch=False),
    "--disable-uvicorn-access-log": Taken("there is no access log"),
    "--disable-access-log-for-endpoints": Taken("there is no access log", is_switch=False),
    "--enable-prompt-tokens-details": Taken("usage always has prompt_tokens_details"),
    "--enable-server-load-tracking": Taken("/load is always served"),
    "--enable-request-id-headers": Taken("every answer has x-request-id"),
    "--enable-scale-out": Taken("/inference/v1/generate and the routes that render are always served"),
    "--enable-offline-docs": Taken("/docs needs no other host"),
    "--disable-frontend-multiprocessing": Taken("the router is always a process of its own"),
    "--log-error-stack": Taken("a failure of Baton's own is always logged with its stack"),
    "--enable-log-deltas": Taken("answers are not logged"),
    "--h11-max-header-count": Taken("headers are bounded by --max-header-bytes", is_switch=False),
    "--enable-flash-late-interaction": Taken("the router computes scores of embedded tokens itself"),
    "--cohere-is-reasoning-model": Taken("there are no chat routes of Cohere"),
}
_ADAPTERS: Final = "of adapters there are LoRA ones: --lora-modules"
_PARALLEL: Final = (
    "there is no data parallelism within a model; --prefill-workers, --decode-workers and --mixed add workers"
)
_FINGERPRINT: Final = "system_fingerprint is baton- and the version"
SERVER_FIXED: Final[dict[str, Fixed]] = {
    "--skip-tokenizer-init": Fixed((False,), "a server takes and returns text; in Python LLM has it"),
    "--grpc": Fixed((False,), "gRPC is served beside HTTP, at --grpc-port"),
    "--prompt-adapters": Fixed((None,), _ADAPTERS),
    "--tool-server": Fixed((None,), "the server calls no tools; clients run those of tool_calls"),
    "--log-config-file": Fixed((None,), "lines go to standard error; --log-format and --log-level set them"),
    "--enable-log-outputs": Fixed((False,), "answers are not logged; --enable-log-requests logs requests"),
    "--enable-ssl-refresh": Fixed(
        (False,), "a certificate is read once; restart to renew it, requests migrate"
    ),
    "--enable-per-request-metrics": Fixed((False,), "include_timings in a request asks for its timings"),
    "--fingerprint-mode": Fixed(("full",), _FINGERPRINT),
    "--fingerprint-value": Fixed((None,), _FINGERPRINT),
    "--cohere-format": Fixed(("cmd4",), "there are no chat routes of Cohere"),
    "--data-parallel-supervisor-port": Fixed((9256,), _PARALLEL),
    "--dp-supervisor-probe-interval-s": Fixed((5.0,), _PARALLEL),
    "--dp-supervisor-probe-timeout-s": Fixed((5.0,), _PARALLEL),
    "--dp-supervisor-probe-failure-threshold": Fixed((3,), _PARALLEL),
}
"""Flags of vLLM's server with one value."""
OTHER_NAMES: Final[dict[str, str]] = {
    "--disable-log-requests": "--no-enable-log-requests",
    "--no-disable-log-requests": "--enable-log-requests",
    "--system-prompt": "--system",
    "--api-server-count": "--router-processes",
    "--h11-max-incomplete-event-size": "--max-header-bytes",
}
"""Flags of vLLM's commands that Baton has under other names."""
CLIENT_SHORT_FLAGS: Final[dict[str, str]] = {"-q": "--quick"}
"""Short forms of `vllm chat` and `vllm complete`."""
REFUSED_COMMANDS: Final[Mapping[str, str]] = {
    "launch": "parts are started by baton router, prefill-worker, decode-worker and mixed-worker",
    "bench startup": "time baton serve until its line `serving`",
    "bench mm-processor": "models of text alone are supported",
    "bench iterations": "baton bench latency measures steps of one batch",
    "bench sweep serve": (
        "baton bench sweep measures a running server at --request-rates and --max-concurrencies; start one "
        "with baton serve for each set of its flags"
    ),
    "bench sweep serve_sla": "baton bench sweep --goodput counts requests within limits at each rate",
    "bench sweep serve_workload": "baton bench sweep measures a running server at --request-rates",
    "bench sweep startup": "time baton serve until its line `serving`",
    "bench sweep plot": "baton bench sweep --plot FILE draws what it measures",
    "bench sweep plot_pareto": "baton bench sweep --plot FILE draws what it measures",
}
"""Commands of vLLM's that Baton does not have, and what to do instead."""
