"""Counts HTTP calls and times their answers."""

from __future__ import annotations

import time
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from baton_router.metrics.http_metrics import HttpMetrics

UNCOUNTED: Final = frozenset({"/metrics", "/health", "/ping", "/load", "/version"})
"""Routes that scrapers and probes ask again and again."""
_CLIENT_LEFT: Final = 499
"""Status of a call whose client left before an answer began."""
_ROUTE: Final = "baton.route"
"""Key of a scope under which the route that takes the call leaves its path."""


def name_route(scope: Scope, path: str) -> None:
    """Count a call under the path of its route, whose parameters stand in braces."""
    scope[_ROUTE] = path


class CountedCalls:
    """Stands around `app`, whose routes give their paths to `name_route`; others are counted together."""

    def __init__(self, app: ASGIApp, metrics: HttpMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, began_s = _CLIENT_LEFT, time.monotonic()

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            handler = scope.get(_ROUTE, "")
            if handler not in UNCOUNTED:
                duration_s = time.monotonic() - began_s
                self._metrics.on_answered(handler, scope["method"], status, duration_s)
