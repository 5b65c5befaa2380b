"""Prometheus metrics of a router, put together for each scrape."""

from __future__ import annotations

import time
from typing import Final

from baton_router.core.admission.admission_outcome import AdmissionOutcome
from baton_router.core.flow.router_core import RouterCore
from baton_router.metrics import fleet_metrics, http_metrics, pick_metrics, placement_metrics, scaling_metrics
from baton_router.metrics.history_sampler import HistorySampler
from baton_router.metrics.http_metrics import HttpMetrics
from baton_router.metrics.pick_metrics import PickMetrics
from baton_router.metrics.request_metrics import RequestMetrics
from baton_service import vllm_metrics as vllm
from baton_service.exposition import Exposition, counter, gauge, histogram
from baton_service.loop_turns import LoopTurns
from baton_service.redis import shared_state_metrics
from baton_service.redis.shared_state import SharedState

ADMISSIONS: Final = counter("baton_admissions", "Requests by outcome of admission", "outcome")
QUEUE_LENGTH: Final = gauge("baton_queue_length", "Requests that wait at the router for a worker")
QUEUE_TOKENS: Final = gauge("baton_queue_tokens", "Tokens that those are expected to need")
OPEN_REQUESTS: Final = gauge("baton_open_requests", "Requests that this router has and that are not over")
ROLE_SHIFTS: Final = counter(
    "baton_role_shifts", "Changes of roles that --adaptive-roles asked for", "before", "after"
)


LAG: Final = histogram(
    "baton_event_loop_lag_seconds",
    "Time of one turn of the router's event loop, for which every other request waits",
)
CPU: Final = histogram(
    "baton_event_loop_turn_cpu_seconds",
    "CPU time of the event loop's thread in one turn, without that of other threads and processes",
)


WASTED_TOKENS: Final = counter(
    "baton_wasted_tokens",
    "Tokens of sequences that were over at the router: after a stop string, or cancelled",
)
MOVES: Final = counter(
    "baton_request_moves",
    "Moves of requests that have ended to another worker, because one was lost or gave them back",
)
FAMILIES: Final = (
    *vllm.REQUEST_FAMILIES,
    *vllm.REPORTED_FAMILIES,
    *(ADMISSIONS, QUEUE_LENGTH, QUEUE_TOKENS, OPEN_REQUESTS, ROLE_SHIFTS),
    *placement_metrics.FAMILIES,
    *fleet_metrics.FAMILIES,
    *scaling_metrics.FAMILIES,
    *pick_metrics.FAMILIES,
    *shared_state_metrics.FAMILIES,
    *http_metrics.FAMILIES,
    *(LAG, CPU, WASTED_TOKENS, MOVES),
)


class RouterMetrics:
    """Metrics of one router, on its loop."""

    def __init__(
        self,
        model_name: str,
        core: RouterCore,
        requests: RequestMetrics,
        shared: SharedState | None = None,
        turns: LoopTurns | None = None,
    ) -> None:
        self.requests = requests
        self.http = HttpMetrics()
        self.picks = PickMetrics()
        self.sampler = HistorySampler(core, requests)
        self._shared = shared
        self._turns = turns or LoopTurns()
        self._model_name = model_name
        self._core = core

    def exposition(self, *, is_ready: bool) -> Exposition:
        """Return all samples as they are now. `is_ready` says whether the router can serve a prompt."""
        page, now = Exposition(FAMILIES), time.monotonic()
        workers = [info.worker_id for info, _ in self._core.fleet.workers()]
        self.requests.report(page, self._model_name, workers, now)
        self.requests.placements.report(page)
        _report_decisions(page, self._core)
        fleet_metrics.report_fleet(page, self._model_name, self._core.fleet, now)
        slo = self.requests.latencies.slo
        scaling_metrics.report_scaling(page, self._core.scaling, slo, is_ready=is_ready)
        shared_state_metrics.report_shared_state(page, "router", self._shared)
        self.http.report(page)
        self.picks.report(page)
        page.add(LAG, self._turns.lag_s)
        page.add(CPU, self._turns.cpu_s)
        page.add(MOVES, self._core.num_migrations)
        page.add(WASTED_TOKENS, self._core.num_wasted_tokens + self.requests.num_cut_tokens)
        return page


def _report_decisions(page: Exposition, core: RouterCore) -> None:
    """Add a sample for each outcome there is, and for each pair of roles that occurred."""
    for outcome in AdmissionOutcome:
        page.add(ADMISSIONS, core.admission.num_by_outcome[outcome], outcome)
    page.add(QUEUE_LENGTH, core.admission.num_waiting)
    page.add(QUEUE_TOKENS, core.admission.queue.num_tokens)
    page.add(OPEN_REQUESTS, core.num_requests)
    for (before, after), count in sorted(core.roles.num_shifts.items()):
        page.add(ROLE_SHIFTS, count, before, after)
