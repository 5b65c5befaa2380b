"""Responses that were made, kept for a while: bounded in number, bytes and age, and apart by tenant."""

from __future__ import annotations

from asyncio import Task
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from baton_router.process.http_settings import ResponseStoreLimits


@dataclass(slots=True, kw_only=True)
class StoredResponse:
    """One response."""

    body: bytes
    """Its JSON."""
    items: Sequence[bytes]
    """The JSON of each item of the conversation before it, that of earlier responses included."""
    created_s: float
    status: str = "in_progress"
    task: Task[Any] | None = None
    """The task that makes it, where it may be cancelled."""
    num_bytes: int = field(init=False, default=0)


class ResponseStore:
    """The responses of one router; the oldest go first. Times are seconds of any one clock."""

    def __init__(self, limits: ResponseStoreLimits) -> None:
        self._limits = limits
        self._responses: dict[tuple[str, str], StoredResponse] = {}
        self._num_bytes = 0

    @property
    def is_enabled(self) -> bool:
        """True if any response is kept."""
        return self._limits.num_responses > 0

    def put(self, tenant: str, name: str, response: StoredResponse) -> None:
        """Keep a response; one that is larger than the whole store is not kept."""
        self.delete(tenant, name)
        response.num_bytes = len(response.body) + sum(map(len, response.items))
        self._responses[tenant, name] = response
        self._num_bytes += response.num_bytes
        self._evict(response.created_s)

    def get(self, tenant: str, name: str, now_s: float) -> StoredResponse | None:
        """Return a tenant's response by its id; None if it is not kept."""
        self._evict(now_s)
        return self._responses.get((tenant, name))

    def update(self, tenant: str, name: str, body: bytes, status: str) -> None:
        """Take what became of a response, if it is still kept; it is as old as before."""
        response = self._responses.get((tenant, name))
        if response is not None:
            self._num_bytes += len(body) - len(response.body)
            response.num_bytes += len(body) - len(response.body)
            response.body, response.status, response.task = body, status, None
            self._evict(response.created_s)

    def delete(self, tenant: str, name: str) -> StoredResponse | None:
        """Forget a tenant's response, and return it; None if it is not kept."""
        response = self._responses.pop((tenant, name), None)
        if response is not None:
            self._num_bytes -= response.num_bytes
        return response

    def _evict(self, now_s: float) -> None:
        limits = self._limits
        while self._responses:
            key, oldest = next(iter(self._responses.items()))
            is_over = len(self._responses) > limits.num_responses or self._num_bytes > limits.num_bytes
            if not is_over and now_s - oldest.created_s <= limits.age_s:
                return
            self.delete(*key)
