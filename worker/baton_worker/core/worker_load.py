"""The load that a worker reports."""

from __future__ import annotations

from collections.abc import Container, Iterable

from baton_core.blocks.block_pool import BlockPool
from baton_core.sessions.worker_info import MAX_REPORTED_ADAPTERS, MAX_REPORTED_WAITING, WorkerLoad
from baton_core.worker.learned_rates import LearnedRates
from baton_core.worker.sequence import SequenceState
from baton_worker.core.adapter_cache import AdapterCache
from baton_worker.core.controls import Controls
from baton_worker.core.scheduler import Scheduler
from baton_worker.core.worker_request import WorkerRequest


def count_deferred(requests: Iterable[WorkerRequest], preparations: Container[str]) -> int:
    """Count the requests that no step can take yet: their blocks, grammars or adapters are awaited.

    A copy is read, for an engine within an application is asked by other threads while it runs steps.
    """
    return sum(
        request.spec.request_id in preparations
        or any(seq.state is SequenceState.PULLING for seq in tuple(request.sequences.values()))
        for request in tuple(requests)
    )


def measure_load(
    now: float,
    scheduler: Scheduler,
    pool: BlockPool,
    controls: Controls,
    rates: LearnedRates,
    num_deferred: int,
    adapters: AdapterCache,
) -> WorkerLoad:
    """Put together what the parts of a worker say now."""
    status, in_flight = controls.status, scheduler.in_flight
    return WorkerLoad(
        num_running=scheduler.num_running,
        num_waiting=scheduler.num_waiting,
        num_deferred=num_deferred,
        num_queued_tokens=scheduler.num_queued_tokens,
        num_available_blocks=pool.num_available,
        step_age_s=now - in_flight.first.started_s if in_flight else 0.0,
        is_asleep=controls.is_asleep,
        is_paused=controls.is_paused,
        role=status.role,
        is_role_fixed=status.is_role_fixed,
        is_draining=status.is_draining,
        weights=controls.weights,
        fault=status.fault,
        rates=rates.rates,
        adapters=adapters.loaded[-MAX_REPORTED_ADAPTERS:],
        loading_adapters=adapters.loading[-MAX_REPORTED_ADAPTERS:],
        adapter_load_s=adapters.load_s,
        waiting_request_ids=_waiting_request_ids(scheduler)[-MAX_REPORTED_WAITING:],
    )


def _waiting_request_ids(scheduler: Scheduler) -> tuple[str, ...]:
    """Return the requests that wait for their first step, in order; several sequences have one name."""
    return tuple(dict.fromkeys(seq.seq_id.request_id for seq in scheduler.not_begun))
