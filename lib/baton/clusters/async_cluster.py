"""What `AsyncLLMEngine` generates with: an engine on a thread of this process, or processes of their own."""

from __future__ import annotations

from typing import Any, Protocol

from baton.clusters.cluster import ClusterLoad, Control
from baton.clusters.inbox import Inbox
from baton_core.sessions.router_messages import RequestSpec


class AsyncCluster(Protocol):
    """Used on the caller's loop; nothing but `close` makes it wait."""

    max_model_len: int

    @property
    def is_running(self) -> bool:
        """Whether it can still take requests."""
        ...

    def submit(self, spec: RequestSpec, inbox: Inbox) -> None:
        """Take a request; its events, or its error, come into the inbox.

        Raises:
            InvalidRequestError: it cannot be sent; the message names the field.
            RequestError: UNAVAILABLE, nothing runs any more.
        """
        ...

    def abort(self, request_id: str) -> None:
        """End a request, of which nothing more comes; one that is over or unknown is passed over."""
        ...

    async def control(self, command: Control) -> list[Any]:
        """Do what an operator asks; returns each worker's answer.

        Raises:
            InvalidRequestError: it cannot be done here; the message names the field.
        """
        ...

    async def load(self) -> ClusterLoad: ...

    def close(self) -> None: ...
