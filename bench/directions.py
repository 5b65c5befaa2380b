"""Published findings about split serving, asked of the simulator: does it find the same direction?

    python -m bench.directions --conversations conversation_trace.jsonl --chat azure_llm_2023_conv.csv

Three tables: DistServe (goodput of split and mixed workers under a tight and a loose TPOT), Splitwise (load
that as many machines take at a small multiple of an unloaded latency) and Mooncake (placement by cached
prefixes). Machines, models and traces are not those of the papers.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from baton_core.errors import InvalidConfigError
from baton_core.requests.request_context import Slo
from baton_router.core.flow.flow_limits import FlowLimits
from baton_router.core.flow.router_core import RouterConfig
from baton_router.core.placement.placement_config import PlacementConfig, SplitMode
from baton_router.core.placement.routing_policies import RoutingPolicy
from baton_simulator.capacity.figures import Figures
from baton_simulator.capacity.fleet_run import FleetPlan
from baton_simulator.capacity.hardware import HardwareChoice, find_hardware
from baton_simulator.capacity.questions import Question
from baton_simulator.capacity.tables import table
from baton_simulator.capacity.trace import Scale, read_trace
from baton_simulator.capacity.trace_formats import TraceRequest
from baton_simulator.capacity.worker_mix import parse_mix
from baton_simulator.capacity.workload import make_workload
from baton_worker.core.scheduler_config import SchedulerConfig
from bench.command_line import make_parser

MODEL: Final = "llama-3-8b"
HARDWARE: Final = "a100"
ATTAINMENT: Final = 0.9
"""Share of requests that has to meet an SLO."""
SEARCH_STEPS: Final = 5
FLEETS: Final = {"split": ("2P:2D", SplitMode.ALWAYS), "mixed": ("4M", SplitMode.NEVER)}
TIGHT: Final = Slo(ttft_s=2.0, tpot_s=0.02)
LOOSE: Final = Slo(ttft_s=2.0, tpot_s=0.2)
TTFT_TIMES, TPOT_TIMES = 3.0, 1.5
"""Multiples of unloaded latencies: Splitwise's limits of nine in ten requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A fleet and the trace that is played to it."""

    requests: Sequence[TraceRequest]
    mix: str
    split: SplitMode
    policy: RoutingPolicy = RoutingPolicy.COST

    def run(self, slo: Slo, speedup: float) -> Figures:
        """Return the figures of the trace, played so many times as fast."""
        mix = parse_mix(self.mix)
        placement = PlacementConfig(policy=self.policy, split=self.split)
        plan = FleetPlan(
            mix=mix,
            hardware=find_hardware(HardwareChoice(hardware=HARDWARE, model_shape=MODEL)),
            block_size=128,
            scheduler=SchedulerConfig(max_num_seqs=256, max_num_batched_tokens=2048),
            router=RouterConfig(limits=FlowLimits(placement=placement), max_num_requests=16384),
        )
        question = Question(
            plan=plan, requests=self.requests, scale=Scale(speedup=speedup), slo=slo, report=lambda _: None
        )
        return question.goodput()[str(mix)]


def highest_load(setup: Setup, slo: Slo) -> tuple[float, Figures]:
    """Return the highest speed of the trace at which enough requests meet the SLO, and its figures."""
    low, high, best = 0.0, 0.5, None
    while high < 64 and (figures := setup.run(slo, high)).attainment >= ATTAINMENT:
        low, high, best = high, 2 * high, figures
    for _ in range(SEARCH_STEPS):
        middle = (low + high) / 2
        figures = setup.run(slo, middle)
        if figures.attainment >= ATTAINMENT:
            low, best = middle, figures
        else:
            high = middle
    if best is None:
        return 0.0, setup.run(slo, high)
    return low, best


def goodput_row(setup: Setup, name: str, slo: Slo) -> list[str]:
    """Return a line of the tables of DistServe and Splitwise."""
    speedup, figures = highest_load(setup, slo)
    limits = f"TTFT {slo.ttft_s:.3g} s, TPOT {1e3 * (slo.tpot_s or 0):.3g} ms"
    rate = figures.num_requests / figures.duration_s if speedup else 0.0
    return [
        name,
        setup.mix,
        limits,
        f"{rate:.2f}",
        f"{figures.ttft.p90_s:.2f}",
        f"{1e3 * figures.tpot.p90_s:.1f}",
    ]


def policy_row(setup: Setup, speedup: float) -> list[str]:
    """Return a line of Mooncake's table."""
    figures = setup.run(LOOSE, speedup)
    cells = (figures.ttft.mean_s, figures.ttft.p90_s)
    shares = (100 * figures.hit_rate, 100 * figures.attainment)
    return [setup.policy, *(f"{one:.2f}" for one in cells), *(f"{one:.1f}" for one in shares)]


def unloaded(setup: Setup) -> Slo:
    """Return multiples of the latencies of requests that have the machines for themselves."""
    figures = setup.run(LOOSE, 0.05)
    return Slo(ttft_s=TTFT_TIMES * figures.ttft.p50_s, tpot_s=TPOT_TIMES * figures.tpot.p50_s)


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--conversations", type=Path, required=True, help="Mooncake's trace")
    parser.add_argument("--chat", type=Path, required=True, help="Azure's trace")
    parser.add_argument("--requests", type=int, default=300, help="the first so many of a trace")
    parser.add_argument("--mooncake-speedup", type=float, default=0.3)
    parser.add_argument("--jobs", type=int, default=2, help="fleets that are simulated at a time")
    args = parser.parse_args()
    try:
        scale = Scale(speedup=args.mooncake_speedup)
        chat = read_trace(args.chat, args.requests)
        conversations = read_trace(args.conversations, 2 * args.requests)
        for requests in (chat, conversations):
            make_workload(requests, scale)
    except InvalidConfigError as error:
        parser.error(str(error))
    with ProcessPoolExecutor(args.jobs) as pool:
        setups = {name: Setup(requests=chat, mix=mix, split=split) for name, (mix, split) in FLEETS.items()}
        relative = unloaded(setups["mixed"])
        asked = [(name, slo) for slo in (TIGHT, LOOSE, relative) for name in setups]
        goodputs = list(
            pool.map(goodput_row, *zip(*((setups[name], name, slo) for name, slo in asked), strict=True))
        )
        placed = [
            Setup(
                requests=conversations,
                mix="4P:4D",
                split=SplitMode.ALWAYS,
                policy=policy,
            )
            for policy in RoutingPolicy
        ]
        policies = list(pool.map(policy_row, placed, [args.mooncake_speedup] * len(placed)))
    show("DistServe: requests per second of which 90 % meet the limits", goodputs[:4])
    show("Splitwise: the same, within small multiples of unloaded latencies", goodputs[4:])
    print("Mooncake: placement of the same requests\n")
    print(
        table(("", "TTFT mean, s", "TTFT p90, s", "hits, %", "in SLO, %"), [tuple(one) for one in policies])
    )
    return 0


def show(title: str, rows: Sequence[Sequence[str]]) -> None:
    headers = ("", "workers", "limits", "requests/s", "TTFT p90, s", "TPOT p90, ms")
    print(f"{title}\n\n{table(headers, [tuple(row) for row in rows])}\n")


if __name__ == "__main__":
    sys.exit(main())
