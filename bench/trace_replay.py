"""Replays a request trace through real services under each routing policy in turn.

    python -m bench.trace_replay conversation_trace.jsonl --topology 2p2d 4m --repeats 5

Router, workers, sessions, peer channel and transfers are real; the model step is a timer
(`bench.replay.timed_engine`), so that two cores can stand for many. `--real-model` runs the bundled model
instead. The trace has Mooncake's format (baton_simulator.capacity.trace_formats).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from msgspec import to_builtins

from baton_simulator.capacity.step_timing import StepTiming
from baton_simulator.capacity.tables import table
from baton_simulator.capacity.trace import Scale, read_trace
from bench.command_line import make_parser
from bench.replay.cluster import TOPOLOGIES, ClusterPlan, Usage, running
from bench.replay.loads import VOCAB_SIZE, Arrival, Load, ideal_hits, make_arrivals
from bench.replay.metrics import pairs_table, policy_table, spread
from bench.replay.overheads import Overheads, measure_overheads
from bench.replay.paired_runs import PairedLoad, PairedRuns, run_in_turns
from bench.replay.worker_sizing import add_worker_arguments, model_worker_flags, timed_worker_flags

POLICIES = ("cost", "round-robin", "least-loaded", "power-of-two", "consistent-hash", "prefix")
SETTINGS = {
    **{policy: ("--routing-policy", policy) for policy in POLICIES},
    "always-split": ("--split", "always"),
    "never-split": ("--split", "never"),
}
"""Flags of a router, by name."""
NUM_WARM_UP = 40
"""Requests that come before the first run, so that workers know how fast they are."""
COLUMNS = {
    "mean TTFT, ms": ("mean_ttft_s", 1e3, ".0f"),
    "p99 TTFT, ms": ("p99_ttft_s", 1e3, ".0f"),
    "mean gap, ms": ("mean_gap_s", 1e3, ".1f"),
    "p99 gap, ms": ("p99_gap_s", 1e3, ".0f"),
    "mean ITL, ms": ("mean_itl_s", 1e3, ".1f"),
    "p99 ITL, ms": ("p99_itl_s", 1e3, ".0f"),
    "mean E2E, ms": ("mean_e2e_s", 1e3, ".0f"),
}
SHARES = {
    "hit rate, %": ("hit_rate", 1e2, ".1f"),
    "split, %": ("split_share", 1e2, ".0f"),
    "moved, MB": ("transferred_bytes", 1e-6, ".0f"),
}


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("trace", type=Path, help="JSON lines in Mooncake's format")
    parser.add_argument("--policies", nargs="+", choices=tuple(SETTINGS), default=list(POLICIES))
    parser.add_argument("--topology", nargs="+", choices=tuple(TOPOLOGIES), default=["2p2d", "4m"])
    parser.add_argument("--repeats", type=int, default=5, help="runs of each policy")
    parser.add_argument("--requests", type=int, default=240, help="the first so many; 0: all")
    parser.add_argument("--every", type=int, default=4, help="only one of so many conversations")
    parser.add_argument("--divisor", type=int, default=16, help="divisor of the prompts' lengths")
    parser.add_argument("--output-divisor", type=int, default=8, help="divisor of the answers' lengths")
    pace = parser.add_mutually_exclusive_group()
    pace.add_argument(
        "--load", type=float, default=0.6, help="share of the workers' time that requests take by --timing"
    )
    pace.add_argument("--speedup", type=float, help="speedup of the trace's arrivals, instead of --load")
    parser.add_argument("--without-sessions", action="store_true", help="send no session ids")
    parser.add_argument("--real-model", action="store_true", help="run the bundled model instead of a timer")
    parser.add_argument("--save-result", type=Path, help="write all figures to this file, as JSON")
    add_worker_arguments(parser)
    args = parser.parse_args(argv)
    if args.real_model and args.speedup is None:
        parser.error("--real-model needs --speedup: --load goes by the timer")
    return args


def make_load(args: argparse.Namespace, num_workers: int) -> tuple[Load, Scale, float]:
    """Return the load, its part of the trace, and the ideal prefix hit rate."""
    num_requests = args.requests or None
    requests = read_trace(args.trace, num_requests, args.every)
    scale = Scale(
        num_requests=num_requests,
        every=args.every,
        divisor=args.divisor,
        output_divisor=args.output_divisor,
        speedup=args.speedup or 1.0,
        has_sessions=not args.without_sessions,
    )
    arrivals = make_arrivals(requests, scale, VOCAB_SIZE)
    hits = ideal_hits((arrival.token_ids for arrival in arrivals), args.block_size)
    if args.speedup is None:
        busy_s = busy_seconds(args, arrivals, hits)
        speedup = args.load * num_workers * arrivals[-1].at_s / busy_s
        scale = replace(scale, speedup=speedup)
        arrivals = make_arrivals(requests, scale, VOCAB_SIZE)
    return Load(arrivals=arrivals), scale, sum(hits) / num_prompt_tokens(arrivals)


def busy_seconds(args: argparse.Namespace, arrivals: Sequence[Arrival], hits: Sequence[int]) -> float:
    """Return the time that all requests take of engines if every possible prefix hit is one."""
    timing: StepTiming = args.profile.timing
    return sum(
        timing.request_seconds(
            len(arrival.token_ids), num_cached, arrival.num_tokens, chunk=args.max_num_batched_tokens
        )
        for arrival, num_cached in zip(arrivals, hits, strict=True)
    )


def num_prompt_tokens(arrivals: Sequence[Arrival]) -> int:
    return sum(len(arrival.token_ids) for arrival in arrivals)


def replay(args: argparse.Namespace, topology: str, load: Load, folder: Path) -> tuple[PairedRuns, Overheads]:
    """Start one topology and run every policy on it; returns what takes time beside the timers, too."""
    make_flags = model_worker_flags if args.real_model else timed_worker_flags
    plan = ClusterPlan(
        topology=topology,
        routers={policy: SETTINGS[policy] for policy in args.policies},
        worker_flags=make_flags(args, load, len(TOPOLOGIES[topology]), folder),
        is_timed=not args.real_model,
    )
    paired = PairedLoad(load, folder, vocab_size=None if args.real_model else VOCAB_SIZE)
    with running(plan, folder) as cluster:
        print(f"{topology}: warming up", file=sys.stderr, flush=True)
        first = Load(arrivals=load.arrivals[:NUM_WARM_UP])
        PairedLoad(first, folder, vocab_size=None, name="warm-up").run(
            cluster, args.policies[0], PairedRuns()
        )
        overheads = Overheads()
        if not args.real_model:
            overheads = measure_overheads(cluster, args.policies[0], args.profile.timing, folder)
        return run_in_turns(cluster, paired, args.policies, repeats=args.repeats), overheads


def describe(args: argparse.Namespace, topology: str, load: Load, scale: Scale, ideal: float) -> str:
    arrivals, count = load.arrivals, len(load.arrivals)
    prompt_len = num_prompt_tokens(arrivals) / count
    num_tokens = sum(arrival.num_tokens for arrival in arrivals) / count
    step = "the bundled model" if args.real_model else str(args.profile)
    return (
        f"{topology}. Trace: {scale}: {count} requests in {arrivals[-1].at_s:.1f} s, "
        f"{prompt_len:.0f} prompt tokens and {num_tokens:.1f} generated ones each. Model step: {step}. "
        f"Ideal prefix hit rate (cache without bounds, blocks of {args.block_size} tokens): {ideal:.1%}."
    )


def show(topology: str, runs: PairedRuns, policies: Sequence[str], ideal: float) -> None:
    base = policies[0]
    hit_rate = spread(runs.metrics[base], "hit_rate").median
    repeats = len(runs.metrics[base])
    print(f"\n{topology}: median of {repeats} (lowest to highest)\n")
    print(policy_table(runs.metrics, COLUMNS))
    print(f"\n{policy_table(runs.metrics, SHARES)}")
    print(f"\n{base}: prefix hit rate {hit_rate:.1%}, {(hit_rate - ideal) * 100:+.1f} points from the ideal")
    if len(policies) > 1:
        print(f"\nHow much more than {base} in the same repeat, in percent\n")
        print(pairs_table(runs.metrics, base, COLUMNS))
    print(f"\n{usage_table(runs)}")
    for line in dict.fromkeys(runs.doubts):
        print(f"Doubtful: {line}")
    print(f"Wrong or missing answers: {len(runs.faults)}")
    for line in runs.faults[:10]:
        print(f"  {line}")


def usage_table(runs: PairedRuns) -> str:
    """Means over the repeats."""
    rows = []
    for policy in runs.metrics:
        usages = runs.usages[policy]

        def mean(name: str, usages: Sequence[Usage] = usages) -> float:
            return statistics.fmean(getattr(usage, name) for usage in usages)

        busy = [statistics.fmean(usage.steps[worker] for usage in usages) for worker in usages[0].steps]
        rows.append(
            [
                policy,
                " ".join(f"{share:.0%}" for share in busy) or "not measured",
                *(f"{mean(name):.0%}" for name in ("router", "load_generator", "workers")),
                f"{mean('late_s') * 1e3:.2f}",
            ]
        )
    headers = ["", "engines busy", "router CPU", "load generator CPU", "workers' CPU", "steps late, ms"]
    return table(headers, rows)


def main() -> None:
    args = parse_arguments()
    saved: dict[str, object] = {"command": sys.argv}
    num_faults = 0
    for topology in args.topology:
        load, scale, ideal = make_load(args, len(TOPOLOGIES[topology]))
        description = describe(args, topology, load, scale, ideal)
        print(description, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            runs, overheads = replay(args, topology, load, Path(folder))
        print(f"Streams alone: {overheads}")
        show(topology, runs, args.policies, ideal)
        num_faults += len(runs.faults)
        measured = {"ideal_hit_rate": ideal, "overheads": to_builtins(overheads), **asdict(runs)}
        saved[topology] = {"description": description, **measured}
    if args.save_result is not None:
        args.save_result.write_text(json.dumps(saved, indent=2) + "\n")
    if num_faults:
        sys.exit(f"{num_faults} answers were wrong or missing")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
