"""The limits of a request at the router."""

from __future__ import annotations

from dataclasses import dataclass, field

from baton_router.core.flow.migration import MigrationLimits
from baton_router.core.placement.placement_config import PlacementConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowLimits:
    """Timeouts of a request, the settings of its placement, and the name of its router."""

    router_name: str = ""
    """Distinguishes the requests of several routers at their workers; empty where there is only one."""
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    timeout_s: float = 600.0
    queue_s: float = 30.0
    """Longest wait at the router for a worker with room."""
    decode_wait_s: float = 15.0
    """Longest time that the prefill worker holds the blocks for another decode worker, before a migration."""
    migrations: MigrationLimits = field(default_factory=MigrationLimits)
