"""The state of the cluster as one router sees it, and its last minutes: what the dashboard draws."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from importlib.metadata import version
from typing import Final

import msgspec

from baton_core.errors import InvalidRequestError
from baton_core.sessions.worker_info import Role, WorkerInfo, WorkerLoad, WorkerRates
from baton_router.core.fleet.scaling import RoleScaling
from baton_router.http.calls import Call
from baton_router.http.route import Query, Routes, Tag
from baton_router.metrics.fleet_metrics import state_of
from baton_router.metrics.history import INTERVAL_S, MAX_SAMPLES, Sample
from baton_router.metrics.latency_window import SLO_TARGET, WINDOW_S, LatencySummary

ROUTES: Final = Routes(tag=Tag.DEBUG)


class WorkerState(msgspec.Struct, kw_only=True):
    """A worker as its registration and its last heartbeat describe it."""

    worker_id: str
    role: Role
    """The role that it prefers now."""
    is_role_fixed: bool
    """True if an operator set the role."""
    state: str
    """`ready`, `draining`, `paused`, `asleep` or `faulty`."""
    num_running: int
    num_waiting: int
    max_num_seqs: int
    num_queued_tokens: int
    """Prompt tokens that are not computed yet."""
    num_blocks: int
    num_available_blocks: int
    """Free and cached."""
    block_size: int
    """In tokens."""
    block_bytes: int
    step_age_s: float
    rates: WorkerRates
    """0 is not known yet."""
    metrics_address: str
    """Address of its own metrics; empty without."""
    data_parallel_rank: int


class AbsentWorkerState(msgspec.Struct, kw_only=True):
    """A worker of this router's launcher that is not there now."""

    worker_id: str
    role: Role
    """The role that it is started in."""
    state: str
    """`loading`, `lost` (it runs, registered no longer), `restarting` while it waits for its next start."""
    retry_in_s: float | None
    """Time until its next start; null while it runs."""
    num_restarts: int
    """Starts after the first one."""
    end: str
    """The end of its last process; empty before that."""
    reason: str
    """The error that its last process ended with; empty where it reported none."""


class Totals(msgspec.Struct, kw_only=True):
    """Totals since the router's start."""

    num_finished: int
    """Sequences that ended by themselves."""
    num_failed: int
    """Requests that were refused or failed; those whose client left are no failures."""
    num_prompt_tokens: int
    num_cached_tokens: int
    """Prompt tokens found in the prefix cache where the prompt was computed."""
    num_generated_tokens: int
    num_computed: int
    """Prompt tokens by source, of all workers: of a split request both count theirs."""
    num_local_cache: int
    num_remote: int
    num_recomputed: int
    num_transfers: int
    transfer_bytes: int
    transfer_s: float


class Placements(msgspec.Struct, kw_only=True):
    """Decisions of one policy with one outcome."""

    policy: str
    kind: str
    """`split`, `local` or `refused`."""
    count: int


class Admissions(msgspec.Struct, kw_only=True):
    """Requests with one outcome of admission."""

    outcome: str
    count: int


class Shift(msgspec.Struct, kw_only=True):
    """A change of role that the router requested."""

    worker_id: str
    before: Role
    after: Role
    reason: str
    age_s: float


class ClusterState(msgspec.Struct, kw_only=True):
    """The state of the whole cluster."""

    models: list[str]
    version: str
    uptime_s: float
    is_ready: bool
    num_open_calls: int
    num_open_requests: int
    num_waiting: int
    """Requests that wait at the router for a worker."""
    totals: Totals
    workers: list[WorkerState]
    absent_workers: list[AbsentWorkerState]
    """Workers that `baton serve` is loading or will restart."""
    placements: list[Placements]
    admissions: list[Admissions]
    has_operator_routes: bool
    """The router has `/drain`, `/undrain` and `/set_role`."""
    shifts: list[Shift]
    """The latest ones, the last one first."""
    scaling: list[RoleScaling]
    """A recommendation for each role; empty before the first sample."""


@ROUTES.route("/debug/cluster", "getCluster", "Workers, queues, transfers and roles as they are now")
async def show_cluster(call: Call[None]) -> ClusterState:
    state = call.state
    core, requests = state.service.router.core, state.metrics.requests
    now = asyncio.get_running_loop().time()
    workers = sorted(core.fleet.workers(), key=lambda worker: worker[0].worker_id)
    return ClusterState(
        models=list(state.service.model_names),
        version=version("baton"),
        uptime_s=time.monotonic() - state.began_s,
        is_ready=state.service.is_ready,
        num_open_calls=state.service.num_calls,
        num_open_requests=core.num_requests,
        num_waiting=core.admission.num_waiting,
        has_operator_routes=state.settings.enable_operator_routes,
        totals=Totals(**asdict(requests.ended()), **vars(requests.work)),
        workers=[_worker(info, load) for info, load in workers],
        absent_workers=[
            msgspec.convert(worker, AbsentWorkerState, from_attributes=True)
            for worker in state.service.router.absent
        ],
        placements=[
            Placements(policy=policy, kind=kind, count=count)
            for (policy, kind), count in sorted(requests.placements.counts.items())
        ],
        admissions=[
            Admissions(outcome=outcome, count=count)
            for outcome, count in sorted(core.admission.num_by_outcome.items())
        ],
        shifts=[
            Shift(
                worker_id=shift.worker_id,
                before=shift.before,
                after=shift.after,
                reason=shift.reason,
                age_s=now - shift.at_s,
            )
            for shift in reversed(core.roles.shifts)
        ],
        scaling=list(core.scaling.roles),
    )


def _worker(info: WorkerInfo, load: WorkerLoad) -> WorkerState:
    names = WorkerState.__struct_fields__
    known = {name: getattr(of, name) for of in (info, load) for name in names if hasattr(of, name)}
    own = {"role": load.role or info.role, "state": state_of(load), "block_size": info.identity.block_size}
    return WorkerState(**(known | own))


class HistoryQuery(Query, kw_only=True):
    since: float = 0.0
    """Returns samples after this time, in seconds since 1970: the `at_s` of the last known one."""


class HistoryReply(msgspec.Struct, kw_only=True):
    """Latencies of the last `window_s` seconds, and samples of the last `interval_s` times `max_samples`."""

    window_s: float
    slo_target: float
    """Share of the requests that have to be within a limit for the SLO to be attained."""
    latencies: LatencySummary
    interval_s: float
    max_samples: int
    samples: list[Sample]


@ROUTES.route(
    "/debug/history",
    "getHistory",
    "Latency percentiles and samples of rates and loads, of the last minutes",
    errors=(400,),
)
async def show_history(call: Call[None], query: HistoryQuery) -> HistoryReply:
    """Raises InvalidRequestError: `since` is out of range."""
    since = query.since
    if not since >= 0:
        raise InvalidRequestError("since", since, "seconds since 1970, from 0")
    sampler = call.state.metrics.sampler
    return HistoryReply(
        window_s=WINDOW_S,
        slo_target=SLO_TARGET,
        latencies=sampler.latencies,
        interval_s=INTERVAL_S,
        max_samples=MAX_SAMPLES,
        samples=sampler.history.since(since),
    )
