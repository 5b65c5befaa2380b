"""The outcomes of admission: admitted, or refused for a reason."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from baton_core.errors import ErrorCode

MAX_RETRY_AFTER_S: Final = 60.0
"""Maximum of the Retry-After that a client gets."""


class AdmissionOutcome(StrEnum):
    """The outcome of a request, also used as metric label."""

    ADMITTED = "admitted"
    """The request was placed at workers."""
    ROUTER_FULL = "router_full"
    """The router has its maximum of open requests."""
    QUEUE_FULL = "queue_full"
    """The queue is full, and its tenant has the most requests in it."""
    QUEUE_TIMEOUT = "queue_timeout"
    """The wait for a worker reached its limit."""
    REQUEST_RATE = "request_rate"
    """The tenant's limit of requests per minute is reached."""
    TOKEN_RATE = "token_rate"  # noqa: S105
    """The tenant's limit of tokens per minute is reached."""
    SLO_TTFT = "slo_ttft"
    """Its first token would come too late."""
    SLO_TPOT = "slo_tpot"
    """Every worker takes too long for a token."""


_RATES: Final = (AdmissionOutcome.REQUEST_RATE, AdmissionOutcome.TOKEN_RATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The refusal of a new or a waiting request."""

    outcome: AdmissionOutcome
    message: str
    retry_after_s: float | None = None
    """Time until a retry may succeed; None where it is not known."""

    @property
    def code(self) -> ErrorCode:
        """The code of its error: the limits of a key have one of their own."""
        return ErrorCode.RATE_LIMIT_EXCEEDED if self.outcome in _RATES else ErrorCode.OVERLOADED


def retry_after(wait_s: float | None) -> float | None:
    """Return the Retry-After for a predicted wait."""
    return None if wait_s is None else min(wait_s, MAX_RETRY_AFTER_S)
