"""A day of a trace on fleets of a fixed size, and on fleets that a rule makes larger and smaller.

    python -m bench.autoscaling conversation_trace.jsonl --every 60 --divisor 4 --plot autoscaling.png

The hour of the trace is repeated for a day; of each hour as many requests are kept as the time of day asks
for: most at 16:00, a tenth of those at 4:00. Repeated hours share no prefixes.
"""

from __future__ import annotations

import argparse
import math
import sys
import textwrap
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from baton_core.errors import InvalidConfigError, require
from baton_core.requests.request_context import Slo
from baton_core.sessions.worker_info import Role
from baton_router.core.flow.router_core import RouterConfig
from baton_simulator.capacity.figures import percentile
from baton_simulator.capacity.fleet_run import FleetPlan
from baton_simulator.capacity.hardware import Hardware, HardwareChoice, find_hardware
from baton_simulator.capacity.request_result import RequestResult
from baton_simulator.capacity.scaled_run import ByNeed, ByQueue, ScaledRun, ScalingPlan, ScalingRule
from baton_simulator.capacity.tables import table
from baton_simulator.capacity.trace import Scale, read_trace
from baton_simulator.capacity.worker_mix import WorkerMix, parse_mix
from baton_simulator.capacity.workload import Ask, make_workload
from baton_worker.core.scheduler_config import SchedulerConfig
from bench.command_line import make_parser

HOUR_S: Final = 3600.0
BY_QUEUE: Final = "by queue length"
BY_NEED: Final = "by need"
LOW: Final = 0.1
"""Share of the peak's requests at the quietest time."""
_PEAK_HOUR: Final = 16.0
_OVER_0: Final = ("hours", "tokens_per_step", "ttft", "tpot", "heartbeat", "jobs")


@dataclass(frozen=True, slots=True)
class Row:
    """A fleet's day."""

    name: str
    results: Sequence[RequestResult]
    worker_hours: float
    counts: Sequence[tuple[float, int, int]]


def share_at(at_s: float) -> float:
    """Return the share of the peak's requests at a time of day."""
    phase = 2 * math.pi * (at_s / HOUR_S - _PEAK_HOUR) / 24
    return LOW + (1 - LOW) * (0.5 + 0.5 * math.cos(phase))


def day_of(hour: Sequence[Ask], num_hours: int = 24) -> list[Ask]:
    """Return a day made of one hour. The choice of requests depends on nothing but their numbers."""
    most = 1 + max((max(ask.hash_ids) for ask in hour), default=0)
    day = []
    for number in range(num_hours):
        for index, ask in enumerate(hour):
            at_s = number * HOUR_S + ask.at_s % HOUR_S
            draw = (index * 2_654_435_761 + number * 40_503_001) % 2**32 / 2**32
            if draw < share_at(at_s):
                ids = tuple((one + number * most) % (2**31 - 2) for one in ask.hash_ids)
                name, session = f"{number}-{ask.name}", f"{number}-{ask.session_id}"
                day.append(replace(ask, name=name, at_s=at_s, hash_ids=ids, session_id=session))
    return sorted(day, key=lambda ask: ask.at_s)


class Fixed:
    """A rule that keeps the workers that there are."""

    def __init__(self, mix: WorkerMix) -> None:
        self._desired = {Role.PREFILL: mix.prefill, Role.DECODE: mix.decode}

    def sample(self, *_: object) -> dict[Role, int]:
        return self._desired


def as_table(rows: Sequence[Row], slo: Slo, num_devices: int) -> str:
    """Return a line for each fleet."""
    lines = []
    for row in rows:
        whole = [one for one in row.results if one.is_whole]
        ttft = percentile([one.ttft_s for one in whole], 99.0)
        tpot = percentile([one.tpot_s for one in whole if one.tpot_s is not None], 99.0)
        met = sum(one.meets(slo) for one in row.results) / len(row.results)
        most = max((prefill + decode for _, prefill, decode in row.counts), default=0)
        cells = (str(len(row.results)), str(len(row.results) - len(whole)), f"{100 * met:.2f}")
        times = (f"{ttft:.2f}", f"{1e3 * tpot:.0f}")
        lines.append((row.name, *cells, f"{row.worker_hours * num_devices:.0f}", str(most), *times))
    counts = ("requests", "failed", "in SLO, %", "device hours", "most workers")
    headers = ("", *counts, "TTFT p99, s", "TPOT p99, ms")
    return table(headers, lines)


def plot(path: Path, rows: Sequence[Row], title: str) -> None:
    """Draw the number of workers of each fleet over the day."""
    # An extra that tables do without.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(textwrap.fill(title, 120), fontsize=9)
    parts = zip(figure.subplots(1, 2, sharey=True), (1, 2), ("prefill", "decode"), strict=True)
    for axes, index, role in parts:
        for row in rows:
            hours = [one[0] / HOUR_S for one in row.counts]
            axes.step(hours, [one[index] for one in row.counts], label=row.name)
        axes.set_xlabel("hour")
        axes.set_ylabel(f"{role} workers")
    figure.axes[0].legend(fontsize=8)
    figure.savefig(path)


def hardware_of(args: argparse.Namespace) -> Hardware:
    """Return the hardware of each worker."""
    return find_hardware(
        HardwareChoice(
            hardware=args.hardware,
            model_shape=args.model_shape,
            tensor_parallel=args.tensor_parallel_size,
            compute_efficiency=args.compute_efficiency,
        )
    )


def asks_of(args: argparse.Namespace) -> list[Ask]:
    """Return the requests of the day."""
    scale = Scale(every=args.every, divisor=args.divisor)
    asks = day_of(make_workload(read_trace(args.trace, None, args.every), scale), args.hours)
    require("trace", str(args.trace), bool(asks), "one of which the day keeps a request")
    return asks


def plan_of(args: argparse.Namespace, fleet: str) -> FleetPlan:
    """Return the fleet at the day's beginning: of a fixed size, such as 2P:2D, or by a rule."""
    return FleetPlan(
        mix=WorkerMix(prefill=1, decode=1) if fleet in (BY_QUEUE, BY_NEED) else parse_mix(fleet),
        hardware=hardware_of(args),
        block_size=128,
        scheduler=SchedulerConfig(max_num_seqs=args.max_num_seqs, max_num_batched_tokens=2048),
        router=RouterConfig(max_num_requests=8192),
        tokens_per_step=args.tokens_per_step,
        heartbeat_s=args.heartbeat,
    )


def simulate(args: argparse.Namespace, asks: Sequence[Ask], fleet: str, plan: FleetPlan) -> Row:
    """Simulate the day of one fleet."""
    # Workers learn how long a step takes, and each stands for several tokens.
    per_step = Slo(ttft_s=args.ttft, tpot_s=args.tpot * args.tokens_per_step)
    rules: dict[str, ScalingRule] = {BY_QUEUE: ByQueue(), BY_NEED: ByNeed(per_step)}
    name = fleet if fleet in rules else f"fixed {plan.mix}"
    print(f"simulating {name}: {len(asks)} requests", file=sys.stderr, flush=True)
    run = ScaledRun(plan, asks, rules.get(fleet, Fixed(plan.mix)), ScalingPlan(start_s=args.start))
    results = run.run()
    return Row(name, results, run.worker_hours, run.counts)


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--every", type=int, default=1, help="only one of so many conversations")
    parser.add_argument("--divisor", type=int, default=1, help="divisor of the prompts' lengths")
    parser.add_argument("--hours", type=int, default=24)
    parser.add_argument("--hardware", default="cpu")
    parser.add_argument("--model-shape", default="llama-3-70b")
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--compute-efficiency", type=float, default=0.2)
    parser.add_argument("--tokens-per-step", type=int, default=8)
    fixed = ["2P:2D", "3P:4D"]
    parser.add_argument("--fixed", nargs="*", default=fixed, help="fleets of a fixed size")
    parser.add_argument("--ttft", type=float, default=60.0, help="SLO in seconds")
    parser.add_argument("--tpot", type=float, default=1.0, help="SLO in seconds")
    parser.add_argument("--start", type=float, default=120.0, help="seconds that a start takes")
    parser.add_argument("--max-num-seqs", type=int, default=16)
    parser.add_argument("--heartbeat", type=float, default=3.0, help="seconds between a worker's reports")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--jobs", type=int, default=1, help="fleets that are simulated at a time")
    args = parser.parse_args()
    slo = Slo(ttft_s=args.ttft, tpot_s=args.tpot)
    fleets = (*args.fixed, BY_QUEUE, BY_NEED)
    try:
        for name in _OVER_0:
            require(name, getattr(args, name), getattr(args, name) > 0, "over 0")
        plans, asks = [plan_of(args, fleet) for fleet in fleets], asks_of(args)
    except InvalidConfigError as error:
        parser.error(str(error))
    with ProcessPoolExecutor(args.jobs) as pool:
        rows = list(pool.map(partial(simulate, args, asks), fleets, plans))
    title = f"{args.trace.stem}, one in {args.every} conversations; {plans[0].hardware.description}"
    print(f"{title}. SLO: TTFT within {args.ttft:g} s and TPOT within {args.tpot:g} s.\n")
    print(as_table(rows, slo, args.tensor_parallel_size))
    if args.plot:
        plot(args.plot, rows, title)
    return 0


if __name__ == "__main__":
    sys.exit(main())
