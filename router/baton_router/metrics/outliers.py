"""Finds requests that took too long: beyond their SLO, or else beyond the others of the last minutes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from baton_core.requests.request_context import Slo
from baton_router.core.flow.request_record import RequestRecord
from baton_router.metrics.latency_window import Latency, LatencySummary

MIN_COUNT: Final = 100
"""Fewer latencies have no 99th percentile beside their maximum."""


class Limit(StrEnum):
    """Origin of a limit."""

    SLO = "slo"
    P99 = "p99"
    """The 99th percentile of the window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlier:
    """A latency of a request, and the limit that it is beyond."""

    metric: Latency
    value_s: float
    limit_s: float
    limit: Limit


def latencies_of(record: RequestRecord, now: float) -> dict[Latency, float]:
    """The latencies that a request has; TTFT and E2E grow while it runs."""
    latencies = {Latency.E2E: (now if record.ended_s is None else record.ended_s) - record.started_s}
    if record.first_token_s is not None:
        latencies[Latency.TTFT] = record.first_token_s - record.started_s
    elif record.ended_s is None:
        latencies[Latency.TTFT] = now - record.started_s
    if record.per_token_s:
        latencies[Latency.TPOT] = record.per_token_s
    return latencies


def outliers_of(record: RequestRecord, now: float, slo: Slo, summary: LatencySummary) -> list[Outlier]:
    """Latencies of a request beyond its SLO, or, where it has none, beyond the window's 99th percentile.

    A request that failed has no outliers.

    Args:
        slo: the router's, for requests that do not say themselves.
    """
    if record.code is not None:
        return []
    own = record.context.slo
    effective = replace(
        slo,
        ttft_s=slo.ttft_s if own.ttft_s is None else own.ttft_s,
        tpot_s=slo.tpot_s if own.tpot_s is None else own.tpot_s,
    )
    return _beyond(latencies_of(record, now), effective, summary)


def _beyond(latencies: Mapping[Latency, float], slo: Slo, summary: LatencySummary) -> list[Outlier]:
    limits = {Latency.TTFT: slo.ttft_s, Latency.TPOT: slo.tpot_s}
    found = []
    for metric in (Latency.TTFT, Latency.TPOT, Latency.E2E):
        limit_s, limit = limits.get(metric), Limit.SLO
        if limit_s is None:
            limit_s, limit = summary.p99_s(metric, MIN_COUNT), Limit.P99
        value_s = latencies.get(metric)
        if limit_s is not None and value_s is not None and value_s > limit_s:
            found.append(Outlier(metric=metric, value_s=value_s, limit_s=limit_s, limit=limit))
    return found
