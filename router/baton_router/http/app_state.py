"""The state that all calls of the HTTP server share."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version

from baton_router.batches.batches import Batches
from baton_router.http.ignored_fields import IgnoredFields
from baton_router.http.response_stores.response_store import ResponseStore
from baton_router.metrics.router_metrics import RouterMetrics
from baton_router.process.generation_service import GenerationService
from baton_router.process.http_settings import HttpSettings
from baton_router.streams.loop_turns import LoopShare
from baton_service.keys import Keys


@dataclass(frozen=True, slots=True, kw_only=True)
class AppState:
    """The state of one router's HTTP server, made once."""

    service: GenerationService
    model: str
    """The folder or id that the operator named."""
    settings: HttpSettings
    own_hosts: Collection[str] | None
    """Names with a dot at which a browser may have the router's own pages; None is any."""
    keys: Keys
    metrics: RouterMetrics
    responses: ResponseStore
    """Responses that are kept for a while."""
    ask_processes: Callable[[bytes], Awaitable[Mapping[int, bytes]]] | None = None
    """Returns what all processes of this router answer, by their numbers, where there are several."""
    batches: Batches | None = None
    """Files and batches, where there is a folder for them."""
    started_at: int = field(default_factory=lambda: int(time.time()))
    """In seconds since 1970."""
    began_s: float = field(default_factory=time.monotonic)
    """The same in the time of the monotonic clock."""
    fingerprint: str = field(default_factory=lambda: f"baton-{version('baton')}")
    """`system_fingerprint` of replies: changes with the code that computes them."""

    ignored: IgnoredFields = field(init=False)
    """Fields that clients send in vain."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ignored", IgnoredFields(self.metrics.http))

    @property
    def share(self) -> LoopShare:
        """Turns of the loop for long work."""
        return self.service.share
