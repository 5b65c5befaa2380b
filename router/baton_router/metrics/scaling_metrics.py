"""Metrics by which an autoscaler sees how much each role lacks."""

from __future__ import annotations

from typing import Final

from baton_core.requests.request_context import Slo
from baton_router.core.fleet.scaling import Scaling
from baton_service.exposition import Exposition, Family, Kind

_ROLE: Final = ("role",)


def _gauge(name: str, text: str, *labels: str) -> Family:
    return Family(name=f"baton_{name}", kind=Kind.GAUGE, text=text, labels=labels)


READY: Final = _gauge("ready", "1 while this router can serve a prompt")
SLO: Final = _gauge("slo_seconds", "Targets of --slo", "latency")
WORKERS: Final = _gauge("role_workers", "Workers that take requests and have the role", *_ROLE)
NEED: Final = _gauge(
    "role_need", "Workers that the role needs as a share of those it has; above 1 it is short", *_ROLE
)
DESIRED: Final = _gauge("role_desired_workers", "Workers that the role should have", *_ROLE)
TTFT: Final = _gauge("predicted_ttft_seconds", "Mean time that a prompt would wait at a prefill worker now")
TPOT: Final = _gauge("predicted_tpot_seconds", "Mean time of a decode step of the workers that decode now")
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
        page.add(DESIRED, one.num_desired, one.role)
    page.add(TTFT, scaling.predicted_ttft_s)
    page.add(TPOT, scaling.predicted_tpot_s)
