"""What a worker tells of its load."""

from __future__ import annotations

from collections.abc import Iterable

from baton_core.blocks.block_pool import BlockPool
from baton_core.sessions.worker_info import WorkerLoad
from baton_core.worker.controls import Controls
from baton_core.worker.learned_rates import LearnedRates
from baton_core.worker.preparations import Preparations
from baton_core.worker.scheduler import Scheduler
from baton_core.worker.sequence import SequenceState
from baton_core.worker.worker_request import WorkerRequest


def count_deferred(requests: Iterable[WorkerRequest], preparations: Preparations) -> int:
    """Requests that no step can take yet: their blocks are on their way, or their form is being compiled."""
    return sum(
        request.spec.request_id in preparations
        or any(seq.state is SequenceState.IMPORTING for seq in request.sequences.values())
        for request in requests
    )


def measure_load(
    now: float,
    scheduler: Scheduler,
    pool: BlockPool,
    controls: Controls,
    rates: LearnedRates,
    num_deferred: int,
) -> WorkerLoad:
    """Put together what the parts of a worker say now."""
    standing, flights = controls.standing, scheduler.flights
    return WorkerLoad(
        num_running=scheduler.num_running,
        num_waiting=scheduler.num_waiting,
        num_deferred=num_deferred,
        num_queued_tokens=scheduler.num_queued_tokens,
        num_available_blocks=pool.num_available,
        step_age_s=now - flights.first.started_s if flights else 0.0,
        is_asleep=controls.is_asleep,
        role=standing.role,
        is_role_fixed=standing.is_role_fixed,
        is_draining=standing.is_draining,
        fault=standing.fault,
        rates=rates.rates,
    )
