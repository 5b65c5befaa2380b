"""Rate limits per tenant and minute: a bucket of requests and a bucket of tokens for each."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from baton_core.requests.spending import Spending

MAX_TENANTS: Final = 4096
"""Maximum number of tenants with buckets; the least recently active is forgotten first."""
_WINDOW_S: Final = 60.0


class Rate(StrEnum):
    """The limited quantity."""

    REQUESTS = "requests"
    TOKENS = "tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimit:
    """Limits of each tenant per minute; None is no limit."""

    requests: float | None = None
    tokens: float | None = None
    """Tokens of prompts and outputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """The limit for which a tenant has to wait, and the wait."""

    rate: Rate
    limit: float
    wait_s: float


class RateLimits:
    """Token buckets that hold the amount of one minute; unused tokens above it are lost.

    A request or a call that is larger than its bucket passes when that is full, and leaves it in debt.
    """

    def __init__(self, limit: RateLimit, max_tenants: int = MAX_TENANTS) -> None:
        limits = {Rate.REQUESTS: limit.requests, Rate.TOKENS: limit.tokens}
        self._limits = {rate: value for rate, value in limits.items() if value is not None}
        self._max_tenants = max_tenants
        self._buckets: OrderedDict[str, dict[Rate, _Bucket]] = OrderedDict()
        self._unshared: dict[str, Spending] = {}
        """The spending of each tenant here since `take_unshared`."""

    @property
    def num_tenants(self) -> int:
        """Number of tenants with buckets."""
        return len(self._buckets)

    def shortage(self, now: float, tenant: str, num_tokens: float, num_requests: int = 1) -> Shortage | None:
        """Return the shortage for more requests of this number of tokens together; None if there is none."""
        needs = {Rate.REQUESTS: float(num_requests), Rate.TOKENS: num_tokens}
        waits = {
            rate: bucket.wait_s(now, needs[rate])
            for rate, bucket in self._buckets_of(now, tenant).items()
            if needs[rate] > 0
        }
        rate = max(waits, key=lambda rate: waits[rate], default=None)
        if rate is None or waits[rate] <= 0:
            return None
        return Shortage(rate=rate, limit=self._limits[rate], wait_s=waits[rate])

    def spend(self, now: float, tenant: str, *, num_requests: int = 0, num_tokens: float = 0.0) -> None:
        """Take from the tenant's buckets; negative amounts are returned to them."""
        self.spend_elsewhere(now, spent := Spending(tenant, num_requests, num_tokens))
        if self._limits:
            self._unshared[tenant] = spent.plus(self._unshared.get(tenant))
            if len(self._unshared) > self._max_tenants:
                del self._unshared[next(iter(self._unshared))]

    def take_unshared(self) -> tuple[Spending, ...]:
        """Return what tenants have spent here since the last call, for routers that share the limits."""
        unshared = tuple(self._unshared.values())
        self._unshared.clear()
        return unshared

    def spend_elsewhere(self, now: float, spent: Spending) -> None:
        """Take from a tenant's buckets what it has spent at a router that shares the limits."""
        tenant, num_requests, num_tokens = spent
        amounts = {Rate.REQUESTS: float(num_requests), Rate.TOKENS: num_tokens}
        for rate, bucket in self._buckets_of(now, tenant).items():
            bucket.take(now, amounts[rate])

    def _buckets_of(self, now: float, tenant: str) -> dict[Rate, _Bucket]:
        if not self._limits:
            return {}
        if tenant not in self._buckets:
            self._buckets[tenant] = {rate: _Bucket(limit, now) for rate, limit in self._limits.items()}
            if len(self._buckets) > self._max_tenants:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(tenant)
        return self._buckets[tenant]


class _Bucket:
    """Starts full and fills evenly."""

    def __init__(self, capacity: float, now: float) -> None:
        self._capacity = capacity
        self._level = capacity
        self._filled_s = now

    def wait_s(self, now: float, amount: float) -> float:
        self._fill(now)
        return (min(amount, self._capacity) - self._level) * _WINDOW_S / self._capacity

    def take(self, now: float, amount: float) -> None:
        self._fill(now)
        self._level = min(self._capacity, self._level - amount)

    def _fill(self, now: float) -> None:
        gained = max(0.0, now - self._filled_s) * self._capacity / _WINDOW_S
        self._level = min(self._capacity, self._level + gained)
        self._filled_s = max(now, self._filled_s)
