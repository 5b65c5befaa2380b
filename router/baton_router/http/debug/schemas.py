"""Reply bodies of `/debug/requests`, which `baton explain` reads."""

from __future__ import annotations

from typing import Final

import msgspec

from baton_core.errors import ErrorCode
from baton_core.requests.phases import Phase, PhaseName, TokenSources
from baton_router.core.placement.placement_record import Decision
from baton_router.metrics.outliers import Outlier

ROUTER: Final = "router"
"""Process of a router's own hop."""


class Hop(msgspec.Struct, kw_only=True):
    """One process's part; seconds count from the start of the request."""

    process: str
    """`router`, or the name of a worker."""
    attempt_id: str = ""
    """The request's name at that worker."""
    phases: list[Phase]
    num_left_out: int = 0
    """Further phases, which the worker does not remember."""
    sources: TokenSources | None = None
    """Sources of the prompt tokens that this worker has."""


class RequestFacts(msgspec.Struct, kw_only=True):
    """One request, as all routes show it; seconds count from its start."""

    request_id: str
    state: str
    """`running`, `finished` or `failed`."""
    code: ErrorCode | None
    age_s: float
    """Since its start."""
    duration_s: float
    """Until its end, or until now."""
    first_token_s: float | None
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int


class RequestDetails(RequestFacts, kw_only=True):
    """One request; seconds count from its start."""

    message: str
    session_id: str
    traceparent: str
    hops: list[Hop]
    decisions: list[Decision]
    """One for each time it was placed."""


class Span(msgspec.Struct, kw_only=True):
    """Phases of one name in one process, from the first to the last."""

    process: str
    name: PhaseName
    start_s: float
    end_s: float


class RequestSummary(RequestFacts, kw_only=True):
    """One request in short; seconds count from its start."""

    per_token_s: float
    """Mean time per token after the first; 0 is not known."""
    outliers: list[Outlier]
    """Latencies beyond the SLO, or beyond the 99th percentile of the last minutes."""
    spans: list[Span]


class RequestList(msgspec.Struct, kw_only=True):
    """The latest requests, the last one first."""

    requests: list[RequestSummary]
