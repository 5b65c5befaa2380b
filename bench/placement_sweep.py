"""Mean end-to-end time of `--split auto` against `always` and `never`, over prompt lengths and loads.

    python -m bench.placement_sweep --lengths 64 256 1024 4096 --loads 0.2 0.4 0.6

Services and timer are those of `bench.trace_replay`. Prompts share nothing and come at random times, the
same for each setting. A load is the share of all workers' time that the requests take by the timer's own
account (StepTiming.request_seconds).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.command_line import make_parser
from bench.replay.cluster import TOPOLOGIES, ClusterPlan, running
from bench.replay.loads import VOCAB_SIZE, Load, random_load
from bench.replay.metrics import Spread, paired_change, shown, spread, table
from bench.replay.paired_runs import PairedLoad, PairedRuns, run_in_turns
from bench.replay.worker_sizing import add_worker_arguments, timed_worker_flags

SPLITS = ("auto", "always", "never")
MAX_LOSS = 0.05
"""Share by which auto may be slower than the better of the others."""
FIGURE = "mean_e2e_s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One point of the sweep."""

    prompt_len: int
    load: float
    rate: float
    """Requests per second."""

    def __str__(self) -> str:
        return f"{self.prompt_len} tokens, load {self.load:g} ({self.rate:.1f} requests per second)"


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--topology", choices=tuple(TOPOLOGIES), default="2p2d")
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=[64, 256, 1024, 4096], help="tokens of the prompts"
    )
    parser.add_argument("--loads", type=float, nargs="+", default=[0.2, 0.4, 0.6])
    parser.add_argument("--output-tokens", type=int, default=32, help="tokens of each answer")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a run")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save-result", type=Path, help="write all figures to this file, as JSON")
    add_worker_arguments(parser)
    return parser.parse_args()


def make_cell(args: argparse.Namespace, prompt_len: int, load: float) -> Cell:
    busy_s = args.profile.timing.request_seconds(
        prompt_len, 0, args.output_tokens, chunk=args.max_num_batched_tokens
    )
    return Cell(prompt_len=prompt_len, load=load, rate=load * len(TOPOLOGIES[args.topology]) / busy_s)


def make_load(args: argparse.Namespace, cell: Cell) -> Load:
    return random_load(
        rate=cell.rate,
        seconds=args.seconds,
        prompt_len=cell.prompt_len,
        num_tokens=args.output_tokens,
        seed=f"{args.seed} {cell}",
    )


def sweep(args: argparse.Namespace, loads: dict[Cell, Load], folder: Path) -> dict[Cell, PairedRuns]:
    everything = Load(arrivals=[arrival for load in loads.values() for arrival in load.arrivals])
    num_workers = len(TOPOLOGIES[args.topology])
    plan = ClusterPlan(
        topology=args.topology,
        routers={split: ("--split", split) for split in SPLITS},
        worker_flags=timed_worker_flags(args, everything, num_workers, folder),
    )
    paired = {
        cell: PairedLoad(load, folder, vocab_size=VOCAB_SIZE, name=f"load-{number}")
        for number, (cell, load) in enumerate(loads.items())
    }
    results = {}
    with running(plan, folder) as cluster:
        print("warming up", file=sys.stderr, flush=True)
        for split in ("always", "never"):
            next(iter(paired.values())).run(cluster, split, PairedRuns())
        for cell, load in paired.items():
            print(cell, file=sys.stderr, flush=True)
            results[cell] = run_in_turns(cluster, load, SPLITS, repeats=args.repeats)
    return results


def loss(runs: PairedRuns) -> Spread:
    """Return how much slower auto is than the better of the others: the one with the lower median."""
    better = min(("always", "never"), key=lambda split: spread(runs.metrics[split], FIGURE).median)
    change = paired_change(runs.metrics["auto"], runs.metrics[better], FIGURE)
    assert change is not None, "an answer takes time"
    return change


def result_table(results: dict[Cell, PairedRuns]) -> str:
    rows = []
    for cell, runs in results.items():
        busy = [share for usage in runs.usages["auto"] for share in usage.steps.values()]
        rows.append(
            [
                str(cell.prompt_len),
                f"{cell.load:g}",
                f"{cell.rate:.1f}",
                *(shown(spread(runs.metrics[split], FIGURE), 1e3, ".0f") for split in SPLITS),
                f"{spread(runs.metrics['auto'], 'split_share').median:.0%}",
                f"{statistics.fmean(busy):.0%}",
                shown(loss(runs), 100, "+.1f"),
            ]
        )
    headers = ["prompt", "load", "requests/s", *(f"{split}, ms" for split in SPLITS)]
    return table([*headers, "auto splits", "auto's engines busy", "auto against the better, %"], rows)


def main() -> None:
    args = parse_arguments()
    cells = [make_cell(args, length, load) for length in args.lengths for load in args.loads]
    loads = {cell: make_load(args, cell) for cell in cells}
    print(
        f"{args.topology}, {args.output_tokens} tokens to generate. Model step: {args.profile}.", flush=True
    )
    with tempfile.TemporaryDirectory() as folder:
        results = sweep(args, loads, Path(folder))
    print(f"\nMean end-to-end time, median of {args.repeats} (lowest to highest)\n")
    print(result_table(results))
    worse = [cell for cell, runs in results.items() if loss(runs).median > MAX_LOSS]
    print(f"\nCells where auto is over {MAX_LOSS:.0%} slower than the better: {len(worse)} of {len(cells)}")
    faults = [fault for runs in results.values() for fault in runs.faults]
    doubts = dict.fromkeys(f"{cell}: {doubt}" for cell, runs in results.items() for doubt in runs.doubts)
    for line in (*(f"Doubtful: {doubt}" for doubt in doubts), *faults[:10]):
        print(line)
    if args.save_result is not None:
        saved = [{**asdict(cell), **asdict(runs)} for cell, runs in results.items()]
        args.save_result.write_text(json.dumps({"command": sys.argv, "cells": saved}, indent=2) + "\n")
    if faults:
        sys.exit("some answers were wrong or missing")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
