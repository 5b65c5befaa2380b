"""What all calls of the HTTP server stand on."""

from __future__ import annotations

import time
from dataclasses import dataclass
from importlib.metadata import version

from baton_router.front_door import FrontDoor
from baton_router.http.http_settings import HttpSettings
from baton_router.metrics.router_metrics import RouterMetrics
from baton_service.keys import Keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One router's, made once."""

    door: FrontDoor
    settings: HttpSettings
    keys: Keys
    metrics: RouterMetrics
    started_at: int
    """In seconds since 1970."""
    fingerprint: str
    """`system_fingerprint` of answers: changes with the code that computes them."""


def make_site(door: FrontDoor, settings: HttpSettings, metrics: RouterMetrics, keys: Keys) -> Site:
    """Put it together."""
    return Site(
        door=door,
        settings=settings,
        keys=keys,
        metrics=metrics,
        started_at=int(time.time()),
        fingerprint=f"baton-{version('baton')}",
    )
