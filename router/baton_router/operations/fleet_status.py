"""The status of a router's workers, for those who wait until it can serve."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from baton_router.core.fleet.fleet import Fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetStatus:
    """The workers that take requests, and whether they are enough to serve one."""

    is_ready: bool = False
    num_workers: Mapping[str, int] = field(default_factory=dict)
    """Workers by the role that they were started in."""


def fleet_status(fleet: Fleet, *, is_paused: bool) -> FleetStatus:
    """The present one. No prompt is served while generation is paused."""
    taking = Counter(str(info.role) for info, load in fleet.workers() if load.is_taking)
    return FleetStatus(is_ready=fleet.is_ready and not is_paused, num_workers=dict(taking))
