"""The state of the cluster as one router sees it, and its last minutes: what the dashboard draws."""

from __future__ import annotations

import asyncio
import os
import time
from importlib.metadata import version
from typing import Final

import msgspec

from baton_core.errors import InvalidRequestError
from baton_core.sessions.worker_info import Role, WorkerInfo, WorkerLoad, WorkerRates
from baton_router.core.fleet.scaling import RoleScaling
from baton_router.group.frames import COUNTS, RECENT
from baton_router.http.calls import Call
from baton_router.http.debug.counted import Admissions, Counted, Placements, Shift, Totals, add_counts
from baton_router.http.debug.recent import RecentPart, add_samples
from baton_router.http.debug.requests import ask_processes
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
    core, counted = state.service.router.core, await _counted(call)
    workers = sorted(core.fleet.workers(), key=lambda worker: worker[0].worker_id)
    return ClusterState(
        models=list(state.service.model_names),
        version=version("baton"),
        uptime_s=time.monotonic() - state.began_s,
        is_ready=state.service.is_ready,
        num_open_calls=counted.num_open_calls,
        num_open_requests=counted.num_open_requests,
        num_waiting=counted.num_waiting,
        has_operator_routes=state.settings.enable_operator_routes,
        totals=counted.totals,
        workers=[_worker(info, load) for info, load in workers],
        absent_workers=[
            msgspec.convert(worker, AbsentWorkerState, from_attributes=True)
            for worker in state.service.router.absent
        ],
        placements=counted.placements,
        admissions=counted.admissions,
        shifts=counted.shifts,
        scaling=list(core.scaling.roles),
    )


async def _recent(call: Call[None], since: float) -> tuple[LatencySummary, list[Sample]]:
    """Return the latencies, and the samples after that time, of all processes of this router together."""
    metrics = call.state.metrics
    samples = metrics.sampler.history.since(since)
    if call.state.ask_processes is None:
        return metrics.sampler.latencies, samples
    pages = await ask_processes(call, RECENT + f" {since}".encode())
    parts = [msgspec.json.decode(page, type=RecentPart) for page in pages]
    others = [part for part in parts if part.pid != os.getpid()]
    latencies = metrics.requests.latencies.summary(
        asyncio.get_running_loop().time(), [part.latencies for part in others]
    )
    return latencies, add_samples(samples, [part.samples for part in others])


async def _counted(call: Call[None]) -> Counted:
    pages = await ask_processes(call, COUNTS)
    return add_counts([msgspec.json.decode(page, type=Counted) for page in pages])


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
    latencies, samples = await _recent(call, since)
    return HistoryReply(
        window_s=WINDOW_S,
        slo_target=SLO_TARGET,
        latencies=latencies,
        interval_s=INTERVAL_S,
        max_samples=MAX_SAMPLES,
        samples=samples,
    )
