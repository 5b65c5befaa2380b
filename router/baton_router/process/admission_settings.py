"""Settings of admission: rate limits, queue and SLO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from baton_core.errors import require
from baton_core.requests.request_context import Slo
from baton_router.core.admission.admission import AdmissionConfig
from baton_router.core.admission.admission_gate import DispatchLimit
from baton_router.core.admission.rate_limits import RateLimit

FAIR: Final = DispatchLimit(sequences_per_seat=2.0, queue_s=1.0)
"""Enough to keep a worker busy until it is given the next; the rest waits where it is shared fairly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionSettings:
    """Settings of admission.

    Raises:
        InvalidConfigError: a value is out of range; the message names flag, value and what is allowed.
    """

    slo: Slo = field(default_factory=Slo)
    """SLO of requests that name none."""
    rate_limit: RateLimit = field(default_factory=RateLimit)
    """Rate limit of each key."""
    max_queued_requests: int = 1024
    """Requests that wait at the router for a worker."""
    queue_timeout_s: float = 30.0
    """Longest wait of a request in the queue."""
    priority_aging_s: float = 10.0
    """Waiting so long counts as one step of priority."""

    def __post_init__(self) -> None:
        for flag, value in (("--slo", self.slo.ttft_s), ("--slo", self.slo.tpot_s)):
            require(flag, value, value is None or value > 0, "seconds, over 0")
        for rate in (self.rate_limit.requests, self.rate_limit.tokens):
            require("--rate-limit", rate, rate is None or rate > 0, "numbers over 0")
        is_bound = self.max_queued_requests >= 0
        require("--max-queued-requests", self.max_queued_requests, is_bound, "an integer from 0")
        require("--queue-timeout", self.queue_timeout_s, self.queue_timeout_s > 0, "seconds, over 0")
        require("--priority-aging", self.priority_aging_s, self.priority_aging_s > 0, "seconds, over 0")

    def config(self, api_keys: Sequence[str], num_processes: int = 1) -> AdmissionConfig:
        """Return the core's configuration; with several keys it is fair between them.

        Each of several processes queues its share of the requests that may wait.
        """
        max_queued = self.max_queued_requests
        return AdmissionConfig(
            slo=self.slo,
            rate_limit=self.rate_limit,
            max_queued_requests=max(min(1, max_queued), max_queued // num_processes),
            aging_s=self.priority_aging_s,
            dispatch_limit=FAIR if len(api_keys) > 1 else DispatchLimit(),
        )
