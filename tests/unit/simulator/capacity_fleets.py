"""Small fleets whose steps take round numbers of seconds, and workloads for them."""

from __future__ import annotations

from collections.abc import Sequence

from baton_core.requests.request_context import Slo
from baton_router.core.flow.flow_limits import FlowLimits
from baton_router.core.flow.router_core import RouterConfig
from baton_router.core.placement.placement_config import PlacementConfig, SplitMode
from baton_simulator.capacity.fleet_run import FleetPlan
from baton_simulator.capacity.hardware import Hardware, StridedCost
from baton_simulator.capacity.questions import Question
from baton_simulator.capacity.step_timing import StepTiming
from baton_simulator.capacity.trace import Scale
from baton_simulator.capacity.trace_formats import TraceRequest
from baton_simulator.capacity.worker_mix import parse_mix
from baton_worker.core.scheduler_config import SchedulerConfig

TIMING = StepTiming(
    step_s=0.01, prompt_token_s=0.001, prompt_pair_s=0.0, decode_s=0.002, decode_context_s=0.0
)
KV_BYTES = 1000


def make_plan(
    mix: str,
    *,
    split: SplitMode = SplitMode.ALWAYS,
    message_s: float = 0.0,
    max_num_seqs: int = 64,
    link_bytes_per_s: float = 1e6,
    tokens_per_step: int = 1,
) -> FleetPlan:
    hardware = Hardware(
        description="round numbers",
        cost=StridedCost(cost=TIMING),
        kv_bytes_per_token=KV_BYTES,
        num_kv_tokens=200_000,
        link_bytes_per_s=link_bytes_per_s,
    )
    return FleetPlan(
        mix=parse_mix(mix),
        hardware=hardware,
        scheduler=SchedulerConfig(max_num_seqs=max_num_seqs),
        router=RouterConfig(limits=FlowLimits(placement=PlacementConfig(split=split))),
        tokens_per_step=tokens_per_step,
        message_s=message_s,
    )


def make_requests(
    count: int, *, prompt: int = 100, output: int = 5, every_ms: int = 1000
) -> list[TraceRequest]:
    """Prompts that share nothing, evenly apart."""
    ids_each = -(-prompt // 512)
    return [
        TraceRequest(
            timestamp=number * every_ms,
            input_length=prompt,
            output_length=output,
            hash_ids=list(range(number * ids_each, (number + 1) * ids_each)),
        )
        for number in range(count)
    ]


def make_question(plan: FleetPlan, requests: Sequence[TraceRequest], slo: Slo) -> Question:
    return Question(plan=plan, requests=requests, scale=Scale(), slo=slo, report=lambda name: None)
