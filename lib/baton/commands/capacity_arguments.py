"""Flags of `baton simulate` that ask how much a fleet can serve."""

from __future__ import annotations

from typing import Final

from baton.commands.flags import Flag
from baton.commands.router_arguments import ROUTER_FLAGS

_MAX_INT: Final = 2**31 - 1
_ROUTING: Final = ("--routing-policy", "--split", "--min-split-tokens")
CAPACITY_FLAGS: Final = (
    Flag(
        "--trace",
        str,
        None,
        "requests to simulate: a file of JSON lines in Mooncake's format, or a CSV in Azure's",
        metavar="FILE",
    ),
    Flag("--workers", str, "1P:1D", "workers by role: P prefills, D decodes, M does both", metavar="64P:64D"),
    Flag(
        "--hardware",
        str,
        "h200",
        "b200, h200, h100, a100, l40s, cpu, or a file that bench/calibrate.py wrote",
        metavar="NAME",
    ),
    Flag(
        "--model-shape",
        str,
        "llama-3-8b",
        "llama-3-8b, llama-3-70b, qwen3-30b-a3b, a config.json or its folder; a profile has its own",
        metavar="NAME",
    ),
    Flag("--tensor-parallel-size", int, 1, "machines of one worker", low=1, high=64),
    Flag("--slo", str, "", "what counts as good: ttft=2,tpot=50ms, either one, or nothing", metavar="LIMITS"),
    Flag("--enforce-slo", bool, False, "let the router refuse what it predicts to be late"),
    Flag("--sweep", str, None, "compare P:D ratios of as many workers, or loads", ("ratio", "load")),
    Flag("--ratios", int, 9, "most ratios of a sweep", low=1, high=1000),
    Flag(
        "--lose",
        str,
        "",
        "compare with losing workers at a time: rack-0, a share of each role (25%), or counts (8P:8D)",
        metavar="WORKERS",
    ),
    Flag("--lose-at", float, None, "seconds; default: when half the requests have come", low=0, high=10**9),
    Flag("--racks", int, 8, "racks that each role is dealt to in turn", low=1, high=1000),
    Flag("--requests", int, 1000, "the first so many of the trace; 0 is all", low=0, high=_MAX_INT),
    Flag("--every", int, 1, "only one of so many conversations", low=1, high=_MAX_INT),
    Flag("--divisor", int, 1, "of the prompts' lengths, a divisor of 512", low=1, high=512),
    Flag("--output-divisor", int, 1, "of the answers' lengths", low=1, high=_MAX_INT),
    Flag("--speedup", float, 1.0, "of the arrivals", low=0, high=10**9, is_low_open=True),
    Flag("--sessions", bool, True, "name each request's conversation to the router"),
    *(flag for flag in ROUTER_FLAGS if flag.name in _ROUTING),
    Flag("--block-size", int, 32, "tokens of a block", low=1, high=1024),
    Flag("--max-num-seqs", int, 128, "sequences that a worker runs at once", low=1, high=_MAX_INT),
    Flag("--max-num-batched-tokens", int, 2048, "token budget of a step", low=1, high=_MAX_INT),
    Flag(
        "--gpu-memory-utilization",
        float,
        0.9,
        "share of the memory for weights and KV",
        low=0,
        high=1,
        is_low_open=True,
    ),
    Flag(
        "--kv-tokens",
        int,
        None,
        "tokens that a worker's cache holds; default: what the memory has room for, 1,000,000 for a file",
        low=1,
        high=10**9,
    ),
    Flag(
        "--link-gbps",
        float,
        None,
        "Gbit/s of each worker's link to the others; default: the network of --hardware, 8 for a file",
        low=0,
        high=10**6,
        is_low_open=True,
    ),
    Flag("--message-ms", float, 0.5, "that a message between processes takes", low=0, high=10**6),
    Flag("--compute-efficiency", float, 0.5, "share of peak FLOP/s", low=0, high=1, is_low_open=True),
    Flag("--bandwidth-efficiency", float, 0.7, "share of peak bandwidth", low=0, high=1, is_low_open=True),
    Flag("--step-overhead-ms", float, None, "of each step; default: 2, 0 for a file", low=0, high=10**6),
    Flag("--tokens-per-step", int, 1, "that a decode stands for: faster, less exact", low=1, high=64),
    Flag("--json", str, "", "write all figures to this file", metavar="FILE"),
    Flag("--plot", str, "", "draw them: a .png, .svg or .pdf; needs baton[simulate]", metavar="FILE"),
)
