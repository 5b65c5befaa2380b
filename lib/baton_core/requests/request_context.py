"""What a request brings along that its tokens do not depend on: whose it is, and how fast it has to be."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """How fast a request has to be, in seconds; None is no limit."""

    ttft_s: float | None = None
    """From arrival to the first token."""
    tpot_s: float | None = None
    """Mean time per token after the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """Of one request, as its protocol knows it."""

    tenant: str = ""
    """Whom it is counted for: a name made of the client's key; empty without keys."""
    session_id: str = ""
    """Requests with the same one go to the same worker, where that costs nothing."""
    slo: Slo = field(default_factory=Slo)
    traceparent: str = ""
    """W3C trace context that the client sent; empty without one."""
    arrived_s: float | None = None
    """When the call came, on the router's clock; None where it is not known."""
