"""Flags of `baton simulate`: how much a fleet can serve, and what holds under faults."""

from __future__ import annotations

from typing import Final

from baton.commands.router_arguments import ROUTING_FLAGS
from baton.config.flags import Flag, Pattern

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
    Flag(
        "--slo",
        str,
        "",
        "limits of a good request: ttft=2,tpot=50ms, either one, or nothing",
        metavar="LIMITS",
    ),
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
    Flag("--divisor", int, 1, "divisor of the prompts' lengths; it divides 512", low=1, high=512),
    Flag("--output-divisor", int, 1, "divisor of the answers' lengths", low=1, high=_MAX_INT),
    Flag("--speedup", float, 1.0, "speedup of the arrivals", low=0, high=10**9, is_low_open=True),
    Flag("--sessions", bool, True, "name each request's conversation to the router"),
    *(flag for flag in ROUTING_FLAGS if flag.name in _ROUTING),
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
    Flag("--message-ms", float, 0.5, "time of a message between processes", low=0, high=10**6),
    Flag("--compute-efficiency", float, 0.5, "share of peak FLOP/s", low=0, high=1, is_low_open=True),
    Flag("--bandwidth-efficiency", float, 0.7, "share of peak bandwidth", low=0, high=1, is_low_open=True),
    Flag(
        "--step-overhead-ms",
        float,
        None,
        "overhead of each step; default: 2, 0 for a file",
        low=0,
        high=10**6,
    ),
    Flag(
        "--tokens-per-step",
        int,
        1,
        "tokens that a simulated decode step stands for: more is faster and less exact",
        low=1,
        high=64,
    ),
    Flag("--json", str, "", "write all figures to this file", metavar="FILE"),
    Flag("--plot", str, "", "draw them: a .png, .svg or .pdf; needs baton[simulate]", metavar="FILE"),
)


_MAX_SEED: Final = 2**63 - 1
_SHAPE: Final = Pattern(r"([1-9][0-9]?[pdmr]){1,8}", "counts of p, d, m and r, such as 2p2d or 1p1d1m2r")
_KINDS: Final = Pattern(
    r"[a-z]{1,16}(,[a-z]{1,16}){0,31}", "all, none, or kinds of faults separated by commas"
)
SIMULATION_FLAGS: Final = (
    Flag("--seeds", int, 1000, "seeds to run with faults; 0 goes on until one fails", low=0, high=_MAX_SEED),
    Flag("--first", int, 0, "the first of them", low=0, high=_MAX_SEED),
    Flag("--seed", int, None, "run this one alone", low=0, high=_MAX_SEED, metavar="S"),
    Flag("--story", bool, False, "with --seed: print every event, also if all holds"),
    Flag(
        "--topology",
        str,
        None,
        "workers by role and routers (r), such as 2p2d1r; default: each seed chooses",
        pattern=_SHAPE,
        metavar="SHAPE",
    ),
    Flag(
        "--faults",
        str,
        "all",
        "all, none, or some of crash, leave, freeze, partition, break, reset, loss, garble, drift, cancel, "
        "separated by commas",
        pattern=_KINDS,
        metavar="KINDS",
    ),
)
