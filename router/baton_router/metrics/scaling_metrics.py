"""Metrics by which an autoscaler sees how much each role lacks."""

from __future__ import annotations

from typing import Final

from baton_core.requests.request_context import Slo
from baton_router.core.fleet.scaling import Scaling
from baton_service.exposition import Exposition, gauge

READY: Final = gauge("baton_ready", "1 while this router can serve a prompt")
SLO: Final = gauge("baton_slo_seconds", "Targets of --slo", "latency")
WORKERS: Final = gauge("baton_role_workers", "Workers that take requests and have the role", "role")
NEED: Final = gauge(
    "baton_role_need", "Workers that the role needs as a share of those it has; above 1 it is short", "role"
)
DESIRED: Final = gauge(
    "baton_role_desired_workers",
    "Workers that the role should have; none in a router's first 30 s",
    "role",
)
TTFT: Final = gauge(
    "baton_predicted_ttft_seconds", "Mean time that a prompt would wait at a prefill worker now"
)
TPOT: Final = gauge(
    "baton_predicted_tpot_seconds",
    "Mean time of a decode step of the workers that decode now, of all if none does; absent if unknown",
)
FAMILIES: Final = (READY, SLO, WORKERS, NEED, DESIRED, TTFT, TPOT)


def report_scaling(page: Exposition, scaling: Scaling, slo: Slo, *, is_ready: bool) -> None:
    """Add a sample for each role and each target."""
    page.add(READY, is_ready)
    for latency, target_s in (("ttft", slo.ttft_s), ("tpot", slo.tpot_s)):
        if target_s is not None:
            page.add(SLO, target_s, latency)
    for one in scaling.roles:
        page.add(WORKERS, one.num_workers, one.role)
        page.add(NEED, one.need, one.role)
        if scaling.is_settled:
            page.add(DESIRED, one.num_desired, one.role)
    page.add(TTFT, scaling.predicted_ttft_s)
    if scaling.predicted_tpot_s:
        page.add(TPOT, scaling.predicted_tpot_s)
