"""Picks for a gateway: the routers that may take a request, and the workers that its prompt is best for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from baton_core.errors import ErrorCode, RequestError
from baton_core.requests.request_context import NamedWorkers
from baton_router.gateway.destinations import order_destinations
from baton_router.http.app_state import AppState
from baton_router.http.endpoint import Endpoint
from baton_router.http.errors import failure_of
from baton_router.http.inner_calls import call_route
from baton_router.http.middleware import RequestIds
from baton_router.http.picking import PICKING, Picking
from baton_router.http.routes import ROUTES
from baton_router.metrics.pick_metrics import PickOutcome

PICKED_PATHS: Final = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/inference/v1/generate")
"""Routes whose workers are chosen; requests to others get a router alone."""
_SKIPPED: Final = frozenset({"content-length", "transfer-encoding", "expect"})
_SHOWN: Final[tuple[str, ...]] = ("content-type", "retry-after", "www-authenticate", "x-request-id")
"""Headers of a refusal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The reply in the place of a router's."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Picked:
    """A request's destination."""

    destinations: tuple[str, ...]
    """Routers in the order in which the gateway tries them."""
    named: NamedWorkers | None = None
    """Its workers; None leaves the choice to the router."""
    is_waiting: bool = False
    """True if no worker had room for it."""


class Picker:
    """Picks for all requests of one router's gateways.

    Args:
        own: HTTP address of this router, `host:port`.
        others: returns the addresses of the other routers of its cluster.
    """

    def __init__(self, state: AppState, own: str, others: Callable[[], Sequence[str]]) -> None:
        self.service = state.service
        self.max_body_bytes = state.settings.max_body_bytes
        self._metrics = state.metrics.picks
        self.num_waiting = 0
        """Requests that got no workers and have not begun since."""
        self._own = own
        self._others = others
        self._root_path = state.settings.root_path
        routes = {route.path: route for route in ROUTES if route.method == "POST"}
        self._endpoints = {path: RequestIds(Endpoint(routes[path], state)) for path in PICKED_PATHS}

    def needs_body(self, headers: Mapping[str, str]) -> bool:
        """Return True if the workers of a request with these headers depend on its body."""
        return headers.get(":method") == "POST" and self._path(headers) in self._endpoints

    async def pick(
        self, headers: Mapping[str, str], body: bytes | None, subset: Sequence[str] | None
    ) -> Picked | Refused:
        """Pick for a request; without its body a router alone."""
        begun_s = time.monotonic()
        picked = await self._pick(headers, body, subset)
        self._metrics.on_picked(_outcome_of(picked), time.monotonic() - begun_s)
        return picked

    async def _pick(
        self, headers: Mapping[str, str], body: bytes | None, subset: Sequence[str] | None
    ) -> Picked | Refused:
        service = self.service
        own = self._own if service.is_ready else ""
        destinations = order_destinations(own, self._others(), headers.get("x-request-id", ""), subset)
        if not service.router.is_ready or not destinations:
            why = service.why_not_ready or f"no router is among {', '.join(subset or ()) or 'none'}"
            return refuse(RequestError(ErrorCode.UNAVAILABLE, why))
        if body is None:
            return Picked(destinations=destinations)
        picking = Picking(self.num_waiting)
        given = [
            (name.encode(), value.encode("latin-1"))
            for name, value in headers.items()
            if not name.startswith(":") and name not in _SKIPPED
        ]
        host = (b"host", headers.get(":authority", "").encode("latin-1"))
        path = self._path(headers)
        reply = await call_route(self._endpoints[path], path, body, [host, *given], **{PICKING: picking})
        if reply.status:
            shown = {name.decode(): value.decode("latin-1") for name, value in reply.headers}
            kept = {name: shown[name] for name in _SHOWN if name in shown}
            return Refused(status=reply.status, headers=kept, body=reply.body)
        return Picked(destinations=destinations, named=picking.named, is_waiting=picking.is_waiting)

    def _path(self, headers: Mapping[str, str]) -> str:
        path = headers.get(":path", "").partition("?")[0]
        return path.removeprefix(self._root_path or "")


def _outcome_of(picked: Picked | Refused) -> PickOutcome:
    if isinstance(picked, Refused):
        return PickOutcome.REFUSED
    if picked.is_waiting:
        return PickOutcome.WAITING
    return PickOutcome.ROUTER if picked.named is None else PickOutcome.WORKERS


def refuse(error: Exception) -> Refused:
    """Return the reply that a router gives to an error."""
    failure = failure_of(error)
    headers = {"content-type": "application/json", **failure.headers}
    return Refused(status=failure.status, headers=headers, body=msgspec.json.encode(failure.body))
