"""A request between its check and its start."""

from __future__ import annotations

from dataclasses import dataclass

from baton_core.requests.request_context import RequestContext
from baton_router.requests.resumption import AcceptedRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRequest:
    """A request that is checked and tokenized but not submitted."""

    accepted: AcceptedRequest
    context: RequestContext
    model: str
    """The name that the client asked for; empty without one."""
    is_chat: bool
    is_streamed: bool
    timeout_s: float
    """Timeout from `began_s` on, on the loop's clock."""
    began_s: float
    tokenized_s: float
