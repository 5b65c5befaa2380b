"""Metrics of a router's workers, from their registrations and last heartbeats."""

from __future__ import annotations

from collections import Counter
from typing import Final

from baton_core.sessions.worker_info import Role, WorkerInfo, WorkerLoad
from baton_router.core.fleet.fleet import Fleet
from baton_service import vllm_metrics as vllm
from baton_service.exposition import Exposition, counter, gauge

WORKERS: Final = gauge("baton_workers", "Workers of this router, and of its launcher", "role", "state")
KV_USAGE: Final = gauge(
    "baton_role_kv_cache_usage", "Share of the KV blocks in use at the role's workers", "role"
)
BROKEN_PAIRS: Final = gauge(
    "baton_broken_pairs", "Pairs of workers of which one's blocks do not arrive at the other"
)
RANK: Final = gauge(
    "baton_worker_data_parallel_rank", "Data-parallel rank that the worker belongs to", "worker"
)
STEP_AGE: Final = gauge(
    "baton_worker_step_age_seconds", "How long the step in flight has been running", "worker"
)
QUEUED: Final = gauge("baton_worker_queued_tokens", "Prompt tokens that are not computed yet", "worker")
PREFILL_RATE: Final = gauge(
    "baton_worker_prefill_tokens_per_second",
    "Learned: prompt tokens that steps compute; 0: not known yet",
    "worker",
)
STEP_TIME: Final = gauge(
    "baton_worker_decode_step_seconds", "Learned: a step without prompt tokens; 0: not known yet", "worker"
)
PULL_RATE: Final = gauge(
    "baton_worker_pull_bytes_per_second", "Learned: KV copied from other workers; 0: not known yet", "worker"
)
RESTARTS: Final = counter(
    "baton_worker_restarts", "Starts of a worker by this router's launcher after the first one", "worker"
)
FAMILIES: Final = (
    *(WORKERS, KV_USAGE, RESTARTS, BROKEN_PAIRS, RANK, STEP_AGE),
    *(QUEUED, PREFILL_RATE, STEP_TIME, PULL_RATE),
)


def report_fleet(page: Exposition, model_name: str, fleet: Fleet, now: float) -> None:
    """Add a sample for each worker, and vLLM's for those that serve no metrics of their own."""
    workers = fleet.workers()
    states = Counter((load.role or info.role, state_of(load)) for info, load in workers)
    states += Counter((worker.role, worker.state) for worker in fleet.absent(now))
    for (role, state), count in sorted(states.items()):
        page.add(WORKERS, count, role, state)
    for role, share in kv_usage(fleet).items():
        page.add(KV_USAGE, share, role)
    for name, num_restarts in fleet.processes.num_restarts.items():
        page.add(RESTARTS, num_restarts, name)
    page.add(BROKEN_PAIRS, fleet.num_broken_pairs)
    for info, load in workers:
        name, rates = info.worker_id, load.rates
        page.add(RANK, info.data_parallel_rank, name)
        page.add(STEP_AGE, load.step_age_s, name)
        page.add(QUEUED, load.num_queued_tokens, name)
        page.add(PREFILL_RATE, rates.prefill_tokens_per_s, name)
        page.add(STEP_TIME, rates.decode_step_s, name)
        page.add(PULL_RATE, rates.pull_bytes_per_s, name)
        if not info.metrics_address:
            _report_engine(page, model_name, info, load)


def kv_usage(fleet: Fleet) -> dict[Role, float]:
    """Return the share of the KV blocks in use, by the role of the workers."""
    blocks: Counter[Role] = Counter()
    available: Counter[Role] = Counter()
    for info, load in fleet.workers():
        role = load.role or info.role
        blocks[role] += info.num_blocks
        available[role] += load.num_available_blocks
    return {role: 1 - available[role] / count for role, count in sorted(blocks.items()) if count}


def state_of(load: WorkerLoad) -> str:
    """Return the state of a worker in one word."""
    if load.fault:
        return "faulty"
    if load.is_asleep:
        return "asleep"
    return "draining" if load.is_draining else "paused" if load.is_paused else "ready"


def _report_engine(page: Exposition, model_name: str, info: WorkerInfo, load: WorkerLoad) -> None:
    engine = (model_name, info.worker_id)
    page.add(vllm.NUM_RUNNING, load.num_running, *engine)
    vllm.report_waiting(page, engine, load.num_waiting, load.num_deferred)
    page.add(vllm.KV_USAGE, 1 - load.num_available_blocks / info.num_blocks, *engine)
    cache = (str(info.identity.block_size), str(info.num_blocks), info.identity.dtype)
    page.add(vllm.CACHE_CONFIG, 1, *engine, *cache, str(info.has_prefix_cache))
    if load.figures is not None:
        vllm.report_figures(page, engine, load.figures)
