"""What bounds a request at the router."""

from __future__ import annotations

from dataclasses import dataclass, field

from baton_core.routing.moves import MoveLimits
from baton_core.routing.placement import PlacementConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowLimits:
    """How long a request may take, how it is placed, and whose it is."""

    router_name: str = ""
    """Tells the requests of several routers apart at their workers; empty where there is only one."""
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    timeout_s: float = 600.0
    queue_s: float = 30.0
    """How long it waits at the router for a worker with room."""
    homeless_s: float = 15.0
    """How long the prefill worker holds the blocks for another decode worker; then the request moves."""
    moves: MoveLimits = field(default_factory=MoveLimits)
