"""Flags of `baton simulate`: how much a fleet can serve, and what holds under faults."""

from __future__ import annotations

from typing import Final

from baton.commands.router_arguments import ROUTING_FLAGS
from baton.config.flags import NATURAL, OVER_0, POSITIVE, SHARE_OVER_0, Flag, Pattern, Range

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
    Flag("--tensor-parallel-size", int, 1, "machines of one worker", Range(1, 64)),
    Flag(
        "--slo",
        str,
        "",
        "limits of a good request: ttft=2,tpot=50ms, either one, or nothing",
        metavar="LIMITS",
    ),
    Flag("--enforce-slo", bool, False, "let the router refuse what it predicts to be late"),
    Flag("--sweep", str, None, "compare P:D ratios of as many workers, or loads", ("ratio", "load")),
    Flag("--ratios", int, 9, "most ratios of a sweep", Range(1, 1000)),
    Flag(
        "--lose",
        str,
        "",
        "compare with losing workers at a time: rack-0, a share of each role (25%), or counts (8P:8D)",
        metavar="WORKERS",
    ),
    Flag("--lose-at", float, None, "seconds; default: when half the requests have come", Range(0, 10**9)),
    Flag("--racks", int, 8, "racks that each role is dealt to in turn", Range(1, 1000)),
    Flag("--requests", int, 1000, "the first so many of the trace; 0 is all", NATURAL),
    Flag("--every", int, 1, "only one of so many conversations", POSITIVE),
    Flag("--divisor", int, 1, "divisor of the prompts' lengths; it divides 512", Range(1, 512)),
    Flag("--output-divisor", int, 1, "divisor of the answers' lengths", POSITIVE),
    Flag("--speedup", float, 1.0, "speedup of the arrivals", OVER_0),
    Flag("--sessions", bool, True, "name each request's conversation to the router"),
    *(flag for flag in ROUTING_FLAGS if flag.name in _ROUTING),
    Flag("--block-size", int, 32, "tokens of a block", Range(1, 1024)),
    Flag("--max-num-seqs", int, 128, "sequences that a worker runs at once", POSITIVE),
    Flag("--max-num-batched-tokens", int, 2048, "token budget of a step", POSITIVE),
    Flag("--gpu-memory-utilization", float, 0.9, "share of the memory for weights and KV", SHARE_OVER_0),
    Flag(
        "--kv-tokens",
        int,
        None,
        "tokens that a worker's cache holds; default: what the memory has room for, 1,000,000 for a file",
        Range(1, 10**9),
    ),
    Flag(
        "--link-gbps",
        float,
        None,
        "Gbit/s of each worker's link to the others; default: the network of --hardware, 8 for a file",
        Range(0, 10**6, is_low_open=True),
    ),
    Flag("--message-ms", float, 0.5, "time of a message between processes", Range(0, 10**6)),
    Flag("--compute-efficiency", float, 0.5, "share of peak FLOP/s", SHARE_OVER_0),
    Flag("--bandwidth-efficiency", float, 0.7, "share of peak bandwidth", SHARE_OVER_0),
    Flag(
        "--step-overhead-ms", float, None, "overhead of each step; default: 2, 0 for a file", Range(0, 10**6)
    ),
    Flag(
        "--tokens-per-step",
        int,
        1,
        "tokens that a simulated decode step stands for: more is faster and less exact",
        Range(1, 64),
    ),
    Flag("--json", str, "", "write all figures to this file", metavar="FILE"),
    Flag("--plot", str, "", "draw them: a .png, .svg or .pdf; needs baton[simulate]", metavar="FILE"),
)


_MAX_SEED: Final = 2**63 - 1
_SHAPE: Final = Pattern(
    r"([1-9][0-9]?[pdmr]){1,8}", "counts of p, d, m and r, such as 2p2d or 1p1d1m2r", "SHAPE"
)
_KINDS: Final = Pattern(
    r"[a-z]{1,16}(,[a-z]{1,16}){0,31}", "all, none, or kinds of faults separated by commas", "KINDS"
)
SIMULATION_FLAGS: Final = (
    Flag("--seeds", int, 1000, "seeds to run with faults; 0 goes on until one fails", Range(0, _MAX_SEED)),
    Flag("--first", int, 0, "the first of them", Range(0, _MAX_SEED)),
    Flag("--seed", int, None, "run this one alone", Range(0, _MAX_SEED), metavar="S"),
    Flag("--story", bool, False, "with --seed: print every event, also if all holds"),
    Flag(
        "--topology",
        str,
        None,
        "workers by role and routers (r), such as 2p2d1r; default: each seed chooses",
        _SHAPE,
    ),
    Flag(
        "--faults",
        str,
        "all",
        "all, none, or some of crash, leave, freeze, partition, break, reset, loss, garble, drift, cancel, "
        "separated by commas",
        _KINDS,
    ),
)
