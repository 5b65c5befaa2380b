"""Simulates what `bench.trace_replay` has measured, and says how far the prediction is off.

    python -m bench.trace_replay trace.jsonl --topology 2p2d 4m --repeats 5 --save-result replay.json
    python -m bench.prediction_error replay.json

The same requests, workers, policies and timer. What a step and a message take besides was measured before the
runs, with streams that come one by one; nothing of the runs themselves is used to fit the simulation.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import convert

from baton_core.requests.request_context import Slo
from baton_core.sessions.worker_info import Role
from baton_router.core.flow.flow_limits import FlowLimits
from baton_router.core.flow.router_core import RouterConfig
from baton_router.core.placement.placement_config import PlacementConfig
from baton_router.core.placement.routing_policies import RoutingPolicy
from baton_simulator.capacity.figures import Figures
from baton_simulator.capacity.fleet_run import FleetPlan
from baton_simulator.capacity.hardware import MEASURED_LINK, MEASURED_TOKENS, Hardware, StridedCost
from baton_simulator.capacity.questions import Question
from baton_simulator.capacity.tables import table
from baton_simulator.capacity.trace import read_trace
from baton_simulator.capacity.worker_mix import WorkerMix
from baton_worker.core.scheduler_config import SchedulerConfig
from bench.command_line import make_parser
from bench.replay.cluster import TOPOLOGIES
from bench.replay.overheads import Overheads
from bench.trace_replay import make_load, parse_arguments

COLUMNS: Mapping[str, tuple[str, Callable[[Figures], float], float]] = {
    "mean TTFT, ms": ("mean_ttft_s", lambda figures: figures.ttft.mean_s, 1e3),
    "p99 TTFT, ms": ("p99_ttft_s", lambda figures: figures.ttft.p99_s, 1e3),
    "mean E2E, ms": ("mean_e2e_s", lambda figures: figures.e2e.mean_s, 1e3),
    "p99 E2E, ms": ("p99_e2e_s", lambda figures: figures.e2e.p99_s, 1e3),
    "hit rate, %": ("hit_rate", lambda figures: figures.hit_rate, 1e2),
    "split, %": ("split_share", lambda figures: figures.split_share, 1e2),
}
"""Heading to the measured figure, the predicted one, and the factor of both."""


def predict(
    args: argparse.Namespace, topology: str, placement: PlacementConfig, overheads: Overheads
) -> Figures:
    """Simulate one policy as it was measured."""
    roles = TOPOLOGIES[topology]
    _, scale, _ = make_load(args, len(roles))
    hardware = Hardware(
        description=str(args.profile),
        cost=StridedCost(cost=args.profile.timing, overhead_s=overheads.step_s),
        kv_bytes_per_token=args.kv_bytes_per_token or args.profile.kv_bytes_per_token,
        num_kv_tokens=MEASURED_TOKENS,
        link_bytes_per_s=MEASURED_LINK,
    )
    plan = FleetPlan(
        mix=WorkerMix(**{role: roles.count(role) for role in set(roles)}),
        names={f"{role}-{number}": Role(role) for number, role in enumerate(roles)},
        hardware=hardware,
        block_size=args.block_size,
        scheduler=SchedulerConfig(max_num_batched_tokens=args.max_num_batched_tokens),
        router=RouterConfig(limits=FlowLimits(placement=placement)),
        message_s=overheads.message_s,
    )
    requests = read_trace(args.trace, scale.num_requests, scale.every)
    question = Question(plan=plan, requests=requests, scale=scale, slo=Slo(), report=lambda name: None)
    (figures,) = question.goodput().values()
    return figures


def row(policy: str, runs: Sequence[Mapping[str, float]], predicted: Figures) -> list[str]:
    """Measured median and range, predicted; of times, how much more that is than the median."""
    cells = [policy]
    for name, read, factor in COLUMNS.values():
        values = [run[name] * factor for run in runs]
        measured, guess = statistics.median(values), read(predicted) * factor
        error = f" ({guess / measured - 1:+.0%})" if factor == 1e3 else ""
        form = ".0f" if name != "hit_rate" else ".1f"
        cells += [
            f"{measured:{form}} ({min(values):{form}} to {max(values):{form}})",
            f"{guess:{form}}{error}",
        ]
    return cells


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("result", type=Path, help="file of `bench.trace_replay --save-result`")
    parser.add_argument(
        "--min-split-tokens",
        type=int,
        default=PlacementConfig().min_split_tokens,
        help="flag of the routers that were measured",
    )
    own = parser.parse_args()
    saved: dict[str, Any] = json.loads(own.result.read_text())
    args = parse_arguments(saved["command"][1:])
    headers = [text for name in COLUMNS for text in (name, "predicted")]
    for topology in args.topology:
        measured = {
            policy: runs
            for policy, runs in saved[topology]["metrics"].items()
            if policy in set(RoutingPolicy)
        }
        overheads = convert(saved[topology]["overheads"], Overheads)
        rows = []
        for policy, runs in measured.items():
            placement = PlacementConfig(policy=RoutingPolicy(policy), min_split_tokens=own.min_split_tokens)
            rows.append(row(policy, runs, predict(args, topology, placement, overheads)))
        print(f"\n{topology}, {overheads}\n")
        print(table(["", *headers], rows))


if __name__ == "__main__":
    main()
