"""The last minutes of a router: latency percentiles against the SLO, and samples of its rates and loads."""

from __future__ import annotations

from typing import Final

import msgspec

from baton_core.errors import InvalidRequestError
from baton_router.http.calls import Call
from baton_router.http.route import Query, Routes, Tag
from baton_router.metrics.history import INTERVAL_S, MAX_SAMPLES, Sample
from baton_router.metrics.latency_window import SLO_TARGET, WINDOW_S, LatencySummary

ROUTES: Final = Routes(tag=Tag.DEBUG)


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
