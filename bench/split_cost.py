"""Compares splitting requests between two workers with two workers that do both, under one load.

    python -m bench.split_cost --prompt-len 512 --output-tokens 64 --rates 0.5 1 2

One cluster has a prefill and a decode worker and splits every request, the other two mixed workers and splits
none. Each worker has one thread. Requests come at random times, the same for both, which take turns. TTFT and
the gap to the second token are where the hand-over shows, p99 of the later intervals where another prompt's
chunk stalls the tokens of a mixed worker.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from bench.command_line import make_parser
from bench.replay.cluster import TOPOLOGIES, Cluster, ClusterPlan, running
from bench.replay.loads import VOCAB_SIZE, Load, random_load
from bench.replay.metrics import Columns, pairs_table, policy_table
from bench.replay.paired_runs import PairedLoad, PairedRuns
from bench.replay.worker_sizing import add_worker_arguments, model_worker_flags, timed_worker_flags

SETTINGS = {"together": ("2m", "never"), "split": ("1p1d", "always")}
"""Topology and `--split`, by name."""
WARM_UP_S = 3.0
COLUMNS: Columns = {
    "mean TTFT, ms": ("mean_ttft_s", 1e3, ".0f"),
    "p99 TTFT, ms": ("p99_ttft_s", 1e3, ".0f"),
    "mean gap, ms": ("mean_gap_s", 1e3, ".1f"),
    "mean ITL, ms": ("mean_itl_s", 1e3, ".1f"),
    "p99 ITL, ms": ("p99_itl_s", 1e3, ".0f"),
    "mean E2E, ms": ("mean_e2e_s", 1e3, ".0f"),
}


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--prompt-len", type=int, default=512)
    parser.add_argument("--output-tokens", type=int, default=64, help="tokens of each answer")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.5, 1.0, 2.0], help="requests per second")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of a run")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--timer", action="store_true", help="a timer (--timing) instead of the bundled model"
    )
    parser.add_argument("--save-result", type=Path, help="write all figures to this file, as JSON")
    add_worker_arguments(parser)
    return parser.parse_args()


def make_load(args: argparse.Namespace, rate: float, seconds: float) -> Load:
    return random_load(
        rate=rate,
        seconds=seconds,
        prompt_len=args.prompt_len,
        num_tokens=args.output_tokens,
        seed=f"{rate} {seconds}",
    )


def start(args: argparse.Namespace, name: str, load: Load, stack: ExitStack) -> Cluster:
    """Start a cluster that ends with `stack`."""
    topology, split = SETTINGS[name]
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    make_flags = timed_worker_flags if args.timer else model_worker_flags
    plan = ClusterPlan(
        topology=topology,
        routers={name: ("--split", split)},
        worker_flags=make_flags(args, load, len(TOPOLOGIES[topology]), folder),
        is_timed=args.timer,
    )
    return stack.enter_context(running(plan, folder))


def compare(args: argparse.Namespace) -> dict[float, PairedRuns]:
    loads = {rate: make_load(args, rate, args.seconds) for rate in args.rates}
    largest = max(loads.values(), key=lambda load: len(load.arrivals))
    vocab_size = VOCAB_SIZE if args.timer else None
    results = {}
    with ExitStack() as stack:
        clusters = {name: start(args, name, largest, stack) for name in SETTINGS}
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        warm_up = PairedLoad(make_load(args, max(args.rates), WARM_UP_S), folder, vocab_size=vocab_size)
        for name, cluster in clusters.items():
            warm_up.run(cluster, name, PairedRuns())
        for rate, load in loads.items():
            print(f"{rate:g} requests per second", file=sys.stderr, flush=True)
            paired, runs = PairedLoad(load, folder, vocab_size=vocab_size), PairedRuns()
            for repeat in range(args.repeats):
                for name in sorted(SETTINGS, reverse=repeat % 2 == 1):
                    paired.run(clusters[name], name, runs)
            runs.metrics = {name: runs.metrics[name] for name in SETTINGS}
            results[rate] = runs
    return results


def show(args: argparse.Namespace, rate: float, runs: PairedRuns) -> None:
    base = next(iter(SETTINGS))
    print(f"\n{rate:g} requests per second, median of {args.repeats} (lowest to highest)\n")
    print(policy_table(runs.metrics, COLUMNS))
    print(f"\n{pairs_table(runs.metrics, base, COLUMNS)}")
    for line in (*(f"Doubtful: {doubt}" for doubt in dict.fromkeys(runs.doubts)), *runs.faults[:10]):
        print(line)


def main() -> None:
    args = parse_arguments()
    step = f"a timer, {args.profile}" if args.timer else "the bundled model"
    print(
        f"{args.prompt_len} prompt tokens, {args.output_tokens} to generate. Model step: {step}.", flush=True
    )
    results = compare(args)
    for rate, runs in results.items():
        show(args, rate, runs)
    if args.save_result is not None:
        saved = {str(rate): asdict(runs) for rate, runs in results.items()}
        args.save_result.write_text(json.dumps({"command": sys.argv, "rates": saved}, indent=2) + "\n")
    if any(runs.faults for runs in results.values()):
        sys.exit("some answers were wrong or missing")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
