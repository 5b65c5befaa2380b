"""Context of a request, on which its tokens do not depend: tenant, session, SLO, trace."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Latency targets of a request in seconds; None is no limit."""

    ttft_s: float | None = None
    """Time from arrival to the first token."""
    tpot_s: float | None = None
    """Mean time per token after the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedWorkers:
    """The workers that an endpoint picker has chosen; the same one twice computes the request alone."""

    prefill: str
    decode: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """Context of one request, as its protocol knows it."""

    tenant: str = ""
    """Tenant that the request counts for: a name made of the client's key; empty without keys."""
    session_id: str = ""
    """Requests with the same one go to the same worker, where that costs nothing."""
    data_parallel_rank: int | None = None
    """The data-parallel rank whose workers are to compute it; None is any. While that has none, it is any."""
    named: NamedWorkers | None = None
    """Workers that take the request while they can; None leaves the choice to the router."""
    slo: Slo = field(default_factory=Slo)
    traceparent: str = ""
    """W3C trace context that the client sent; empty without one."""
    arrived_s: float | None = None
    """Arrival of the call, on the router's clock; None where it is not known."""
    is_batch_line: bool = False
    """True for a line of a batch: those run between the requests of others."""


NO_CONTEXT: Final = RequestContext()
"""The context of a request that says nothing."""
