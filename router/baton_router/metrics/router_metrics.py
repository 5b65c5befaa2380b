"""Everything that a router tells Prometheus, put together for each scrape."""

from __future__ import annotations

from typing import Final

from baton_core.routing.router_core import RouterCore
from baton_router.metrics import decision_metrics, fleet_metrics, http_metrics, placement_metrics
from baton_router.metrics.history_sampler import HistorySampler
from baton_router.metrics.http_metrics import HttpMetrics
from baton_router.metrics.request_metrics import RequestMetrics
from baton_service import shared_state_metrics
from baton_service import vllm_metrics as vllm
from baton_service.exposition import Exposition, Family, Kind
from baton_service.shared_state.state import SharedState

WASTED_TOKENS: Final = Family(
    name="baton_wasted_tokens",
    kind=Kind.COUNTER,
    text="Tokens of sequences that were over at the router: after a stop string, or cancelled",
)
MOVES: Final = Family(
    name="baton_request_moves",
    kind=Kind.COUNTER,
    text="Moves of requests that have ended to another worker, because one was lost or gave them back",
)
FAMILIES: Final = (
    *vllm.REQUEST_FAMILIES,
    *vllm.REPORTED_FAMILIES,
    *decision_metrics.FAMILIES,
    *placement_metrics.FAMILIES,
    *fleet_metrics.FAMILIES,
    *shared_state_metrics.FAMILIES,
    *http_metrics.FAMILIES,
    WASTED_TOKENS,
    MOVES,
)


class RouterMetrics:
    """Of one router, on its loop."""

    def __init__(
        self,
        model_name: str,
        core: RouterCore,
        requests: RequestMetrics,
        shared: SharedState | None = None,
    ) -> None:
        self.requests = requests
        self.http = HttpMetrics()
        self.sampler = HistorySampler(core, requests)
        self._shared = shared
        self._model_name = model_name
        self._core = core

    def exposition(self) -> Exposition:
        """All samples as they are now."""
        page = Exposition(FAMILIES)
        self.requests.tell(page, self._model_name)
        self.requests.placements.tell(page)
        decision_metrics.tell_decisions(page, self._core)
        fleet_metrics.tell_fleet(page, self._model_name, self._core.fleet)
        shared_state_metrics.tell_shared_state(page, "router", self._shared)
        self.http.tell(page)
        page.add(MOVES, self._core.num_moves)
        page.add(WASTED_TOKENS, self._core.num_wasted_tokens + self.requests.num_cut_tokens)
        return page
