"""The part of its rate limits that a tenant has used."""

from __future__ import annotations

from typing import NamedTuple


class Spending(NamedTuple):
    """Requests and tokens of one tenant; negative tokens were reserved before and are given back."""

    tenant: str
    num_requests: int
    num_tokens: float

    def plus(self, other: Spending | None) -> Spending:
        """Return the sum of two spendings of one tenant."""
        if other is None:
            return self
        return Spending(
            self.tenant, self.num_requests + other.num_requests, self.num_tokens + other.num_tokens
        )
