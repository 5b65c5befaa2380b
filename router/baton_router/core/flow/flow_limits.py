"""The limits of a request at the router."""

from __future__ import annotations

from dataclasses import dataclass, field

from baton_router.core.flow.flow_state import FlowState
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

    def deadline(
        self,
        state: FlowState,
        entered_s: float,
        *,
        accepted_s: float,
        give_up_s: float,
        migrating_until_s: float,
    ) -> float:
        """Return the time at which a request has waited too long in a state that it entered at `entered_s`.

        `give_up_s` is when admission gives it up, `migrating_until_s` when its migration is given up.
        """
        end = accepted_s + self.timeout_s
        match state:
            case FlowState.WAITING:
                return min(end, entered_s + self.queue_s, give_up_s)
            case FlowState.AWAITING_DECODE:
                return min(end, entered_s + self.decode_wait_s)
            case FlowState.MIGRATING:
                return min(end, migrating_until_s)
            case _:
                return end
