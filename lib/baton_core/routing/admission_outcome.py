"""What admission says of a request: taken, or refused and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

MAX_RETRY_AFTER_S: Final = 60.0
"""The longest that a client is told to stay away."""


class AdmissionOutcome(StrEnum):
    """One for each request that came; doubles as metric label."""

    ADMITTED = "admitted"
    """Workers were given it."""
    ROUTER_FULL = "router_full"
    """As many requests are open as the router takes."""
    QUEUE_FULL = "queue_full"
    """As many wait as may, and its tenant has the most of them."""
    QUEUE_TIMEOUT = "queue_timeout"
    """It waited for a worker as long as it may."""
    REQUEST_RATE = "request_rate"
    """Its tenant has asked too often."""
    TOKEN_RATE = "token_rate"  # noqa: S105
    """Its tenant has asked for too much."""
    SLO_TTFT = "slo_ttft"
    """Its first token would come too late."""
    SLO_TPOT = "slo_tpot"
    """Every worker takes too long for a token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a request is not taken, or waits no longer."""

    outcome: AdmissionOutcome
    message: str
    retry_after_s: float | None = None
    """When it is worth to come again; None where that is not known."""


def retry_after(wait_s: float | None) -> float | None:
    """A predicted wait as a client is told of it."""
    return None if wait_s is None else min(wait_s, MAX_RETRY_AFTER_S)
