"""The settings of placement."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from baton_router.core.placement.placement_snapshot import (
    EXPECTED_OUTPUT_TOKENS,
)
from baton_router.core.placement.routing_policies import RoutingPolicy


class SplitMode(StrEnum):
    AUTO = "auto"
    """Split where the policy prefers it and enough of the prompt has to be computed."""
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementConfig:
    policy: RoutingPolicy = RoutingPolicy.COST
    split: SplitMode = SplitMode.AUTO
    min_split_tokens: int = 32
    """Uncached prompt tokens from which `auto` splits."""
    stall_weight: float = 1.0
    """Weight of a second of stall of one running sequence against a second until the first token."""
    headroom_tokens: int = EXPECTED_OUTPUT_TOKENS
    """Output tokens, or all that a request may generate if those are fewer, for which a worker's
    `max_model_len` must have room; a sequence that outgrows its worker goes on at a larger one."""
