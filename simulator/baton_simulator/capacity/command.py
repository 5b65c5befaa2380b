"""`baton simulate --trace`: reads what is asked, has it answered, and shows the answer."""

from __future__ import annotations

import re
import sys
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Final

import msgspec

from baton_core.errors import InvalidConfigError, require
from baton_core.requests.request_context import Slo
from baton_router.core.flow.flow_limits import FlowLimits
from baton_router.core.flow.router_core import RouterConfig
from baton_router.core.placement.placement_config import PlacementConfig, SplitMode
from baton_router.core.placement.routing_policies import RoutingPolicy
from baton_simulator.capacity.figures import Figures
from baton_simulator.capacity.fleet_run import FleetPlan
from baton_simulator.capacity.hardware import HardwareChoice, find_hardware
from baton_simulator.capacity.output_files import require_writable, writing
from baton_simulator.capacity.plots import plot, require_plots
from baton_simulator.capacity.questions import Question, best
from baton_simulator.capacity.tables import figures_tables
from baton_simulator.capacity.trace import Scale, read_trace
from baton_simulator.capacity.worker_mix import lost_workers, parse_mix, racks
from baton_worker.core.scheduler_config import SchedulerConfig

REQUESTS_PER_WORKER: Final = 256
"""Requests that the one simulated router takes at a time: it stands for as many as the fleet needs."""
_MAX_SHOWN_ERRORS: Final = 3
_SLO: Final = re.compile(r"(ttft|tpot)=([0-9]*\.?[0-9]+)(ms|s)?")


def answer(args: Namespace) -> int:
    """Print tables, and write JSON and a picture where they are asked for; `args` has the flags' fields.

    Raises:
        InvalidConfigError: a value is not allowed.
    """
    require("sweep", args.sweep, not (args.lose and args.sweep), "nothing beside --lose")
    if args.plot:
        require_plots(Path(args.plot))
    if args.json:
        require_writable(Path(args.json), "json")
    question = read_question(args)
    rows = ask(question, args)
    description = describe(question)
    sys.stdout.write(f"{description}\n\n{figures_tables(rows)}\n")
    if len(rows) > 1 and not args.lose:
        sys.stdout.write(f"\nHighest goodput: {best(rows) or 'none, no request met the limits'}\n")
    _write_errors(rows)
    if args.json:
        told = {"description": description, "rows": {name: asdict(row) for name, row in rows.items()}}
        path = Path(args.json)
        with writing(path, "json"):
            path.write_bytes(msgspec.json.format(msgspec.json.encode(told), indent=2) + b"\n")
    if args.plot:
        path = Path(args.plot)
        with writing(path, "plot"):
            plot(path, rows, description)
    return 0


def read_question(args: Namespace) -> Question:
    """Return the question that the flags ask.

    Raises:
        InvalidConfigError: a value is not allowed.
    """
    mix, slo = parse_mix(args.workers), parse_slo(args.slo)
    hardware = find_hardware(
        HardwareChoice(
            hardware=args.hardware,
            model_shape=args.model_shape,
            tensor_parallel=args.tensor_parallel_size,
            compute_efficiency=args.compute_efficiency,
            bandwidth_efficiency=args.bandwidth_efficiency,
            step_overhead_s=None if args.step_overhead_ms is None else args.step_overhead_ms / 1e3,
            memory_share=args.gpu_memory_utilization,
            num_kv_tokens=args.kv_tokens,
            link_bytes_per_s=None if args.link_gbps is None else args.link_gbps * 1e9 / 8,
        )
    )
    scale = Scale(
        num_requests=args.requests or None,
        every=args.every,
        divisor=args.divisor,
        output_divisor=args.output_divisor,
        speedup=args.speedup,
        has_sessions=args.sessions,
    )
    plan = FleetPlan(
        mix=mix,
        hardware=hardware,
        block_size=args.block_size,
        scheduler=SchedulerConfig(
            max_num_seqs=args.max_num_seqs, max_num_batched_tokens=args.max_num_batched_tokens
        ),
        router=_router(args, mix.total),
        tokens_per_step=args.tokens_per_step,
        message_s=args.message_ms / 1e3,
        slo=slo if args.enforce_slo else Slo(),
    )
    return Question(
        plan=plan,
        requests=read_trace(Path(args.trace), scale.num_requests, scale.every),
        scale=scale,
        slo=slo,
        report=lambda name: print(f"simulating {name}", file=sys.stderr, flush=True),  # noqa: T201
    )


def ask(question: Question, args: Namespace) -> dict[str, Figures]:
    if args.lose:
        mix = question.plan.mix
        workers = lost_workers(args.lose, mix, racks(mix, args.racks))
        return question.loss(args.lose, workers, args.lose_at)
    if args.sweep == "ratio":
        return question.ratio(args.ratios)
    return question.load() if args.sweep == "load" else question.goodput()


def parse_slo(text: str) -> Slo:
    """Read `ttft=2,tpot=50ms`, either part alone, or nothing.

    Raises:
        InvalidConfigError: it is none of these.
    """
    limits: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        found = _SLO.fullmatch(part)
        if found is None or found[1] in limits or float(found[2]) == 0:
            raise InvalidConfigError(f"slo is {text!r}; allowed: seconds or ms such as ttft=2,tpot=50ms")
        limits[found[1]] = float(found[2]) / (1e3 if found[3] == "ms" else 1.0)
    return Slo(ttft_s=limits.get("ttft"), tpot_s=limits.get("tpot"))


def describe(question: Question) -> str:
    plan, slo = question.plan, question.slo
    limits = {"TTFT": slo.ttft_s, "TPOT": slo.tpot_s}
    asked = " and ".join(f"{name} within {limit:g} s" for name, limit in limits.items() if limit is not None)
    return (
        f"{plan.mix} workers of {plan.hardware.description}. Trace: {question.scale}. "
        f"SLO: {asked or 'a whole answer'}{', enforced by the router' if plan.slo != Slo() else ''}."
    )


def _router(args: Namespace, num_workers: int) -> RouterConfig:
    placement = PlacementConfig(
        policy=RoutingPolicy(args.routing_policy),
        split=SplitMode(args.split),
        min_split_tokens=args.min_split_tokens,
    )
    return RouterConfig(
        limits=FlowLimits(placement=placement), max_num_requests=REQUESTS_PER_WORKER * max(16, num_workers)
    )


def _write_errors(rows: dict[str, Figures]) -> None:
    for name, figures in rows.items():
        shown = list(figures.errors.items())[:_MAX_SHOWN_ERRORS]
        for error, count in shown:
            sys.stdout.write(f"\n{name}: {count} failed, such as: {error}\n")
        if num_more := figures.num_failed - sum(count for _, count in shown):
            sys.stdout.write(f"\n{name}: {num_more} failed for other reasons\n")
